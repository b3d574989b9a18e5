"""Talks to a cluster that runs pods."""
