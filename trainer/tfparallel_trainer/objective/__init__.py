"""What is trained: a replica, its loss as a fraction, gradients over the data axis, metrics."""
