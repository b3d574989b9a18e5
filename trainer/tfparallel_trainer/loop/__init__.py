"""The course of a run: refusals before it, its epochs and steps on any engine, its exit report."""
