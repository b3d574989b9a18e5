"""`tfparallel plan`: which device holds and does what, before anything trains."""
