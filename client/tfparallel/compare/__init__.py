"""`tfparallel compare`: trains a model synchronously and asynchronously, and compares the runs."""
