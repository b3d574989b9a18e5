"""The engine as a running process.

- `engine`: all parts; `settings`: options and variables of the process.
- `workers`, `reconcile`, `large_jobs`: the workers, a reconcile, and decisions for large jobs.
- `lease`: leader election; `probes`, `gauges`: health and metrics.
"""
