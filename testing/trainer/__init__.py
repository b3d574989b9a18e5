"""Starts trainings as processes, and what they are compared with."""
