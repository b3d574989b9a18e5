"""The operator process: observes jobs and their pods, asks `core.decide`, and writes the decision.

All access to Kubernetes' API is here. `core` decides what to write.
"""
