"""Who lets the pods of a job start: a gang scheduler all at once, a queue of Kueue when it is time.

- `gang`: PodGroups
- `workload`: the Workload, what it asks Kueue for and what Kueue says
- `kueue`: what a job does with its Workload
"""
