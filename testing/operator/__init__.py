"""Runs the operator, its parts and the API server's stand-ins; builds jobs and pods."""
