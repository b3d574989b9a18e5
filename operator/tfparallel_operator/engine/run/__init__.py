"""The engine as a running process.

- `engine`: all parts, joined; `settings`: the process's options and variables.
- `reconcile`: one look at one job, and the workers that look.
- `lease`: which of several operators acts; `probes`, `gauges`: what it answers about itself.
"""
