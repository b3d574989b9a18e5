"""Runs TFParallelJob on Kubernetes and on one machine; knows pods and no TensorFlow."""
