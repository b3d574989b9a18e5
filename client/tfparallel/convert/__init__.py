"""`tfparallel convert`: from TFJob and TrainJob to a TFParallelJob that means the same."""
