"""`tfparallel convert`: from Kubeflow's TFJob to a TFParallelJob that means the same."""
