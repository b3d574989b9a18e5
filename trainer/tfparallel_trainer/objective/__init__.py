"""One optimizer step: loss as a fraction, gradients summed over the data axis, metrics."""
