"""Storage of checkpoints, results and data: in a folder, or below a prefix of a bucket."""
