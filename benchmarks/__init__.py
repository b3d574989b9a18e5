"""Measures the trainer against what one would write without it; `python -m benchmarks`."""
