"""The operator process: it watches jobs and their pods, asks `core.decide` and writes the answer.

All knowledge of Kubernetes' API is here; what to write is decided in `core`.
"""
