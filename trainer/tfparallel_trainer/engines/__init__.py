"""Engines compute steps. `engine` is their interface, and no engine imports another."""
