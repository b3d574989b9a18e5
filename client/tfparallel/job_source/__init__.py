"""Reads and checks a user's job: its file, the files next to it, and overrides.

`source` reads all of it. `user_module` finds faults in the text of the module, and `cluster_checks`
finds problems that show only in a cluster.
"""
