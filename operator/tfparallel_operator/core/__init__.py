"""Deciding, pure: `decide(job, children, now)` says what to write. No I/O, no clock, no framework.

The Kubernetes engine and the local cluster observe, call this, and carry out what it returns.
"""
