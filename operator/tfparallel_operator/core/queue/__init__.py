"""Gang schedulers and Kueue, which decide when the pods of a job start.

- `gang`: the PodGroup of a job, and the table of gang schedulers.
- `gang_plugin`: the interface of gang schedulers.
- `coscheduling`, `kubernetes_gangs`, `volcano`: the gang schedulers.
- `workload`: a Workload of Kueue, with its requests and conditions. `workload_hashes`: what Kueue
  compares of it.
- `kueue`: what a job does with its Workload.
"""
