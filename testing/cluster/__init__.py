"""A real Kubernetes cluster for tests, built from Go modules and started without Docker."""
