"""What starts the pods of a job: a gang scheduler all at once, and a queue of Kueue.

- `gang`: the PodGroup of a job, and the table of gang schedulers
- `gang_plugin`: the interface of gang schedulers
- `coscheduling`, `kubernetes_gangs`, `volcano`: the gang schedulers
- `workload`: the Workload of Kueue, what it requests and what its conditions say
- `kueue`: what a job does with its Workload
"""
