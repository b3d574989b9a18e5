"""The engine as a running process.

- `engine`: all parts, joined; `settings`: the process's options and variables.
- `workers`, `reconcile`, `large_jobs`: who looks at jobs, one look at one, and its decision.
- `lease`: which of several operators acts; `probes`, `gauges`: what it answers about itself.
"""
