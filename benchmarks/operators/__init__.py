"""Measures the operator beside Kubeflow's training-operator, on the same API server."""
