"""Reads and checks the job that a user gives: its file, the files next to it, and overrides.

`source` reads all of it. `user_module` finds faults in the module's text, `cluster_checks` what a
cluster refuses and this machine does not show.
"""
