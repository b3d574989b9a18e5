"""The agent: a container's first process, which forks the trainer for each attempt.

`supervision` is the course of it, `child` the forked process, `orders` what it asks after a run.
"""
