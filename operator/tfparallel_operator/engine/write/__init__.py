"""Writes to the cluster, each write under a condition.

- `apply`, `merge`: the writes of a decision, in order. `writes`: concurrent writes, and results.
- `creations`, `priorities`, `refusals`: creations, and why the API server refuses one.
- `recorder`: Events. `publisher`: reports of progress in a job's status.
- `dependencies`: the dependencies of everything that writes.
"""
