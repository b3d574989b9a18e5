"""Runs a job on this machine: the same decisions, objects in memory, one process for each pod."""
