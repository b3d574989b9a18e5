"""Asynchronous training: servers hold the weights, workers take batches from the chief."""
