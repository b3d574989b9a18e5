"""Ranks and how they work together: the mesh as a value, the cluster, devices, collectives."""
