"""Observes the cluster.

- `jobs`, `sweeper`: the newest version of every job, from kopf's watch and periodic lists.
- `informer`, `children`, `hidden`: lists and watches of jobs' children. `index`, `records`: slim
  records of them. `owned`: their resources.
- `job_memory`: what the engine remembers of each job.
- `specs`, `host_ports`, `flavors`: a job's last valid spec, free ports of nodes, Kueue's flavors.
- `permissions`: whether the installation's restrictions allow what a job uses.
- `pending_search`: why pods are pending, from Events and claims.
"""
