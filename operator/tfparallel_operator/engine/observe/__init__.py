"""Observes the cluster.

- `jobs`, `sweeper`: the newest version of every job, from kopf's watch and periodic lists.
- `informer`, `children`, `hidden`: lists and watches of jobs' children. `index`, `records`: slim
  records of them. `owned`: their resources.
- `job_memory`: what the engine remembers of each job.
- `specs`: a job's last valid spec. `host_port_allocator`: free ports of nodes. `flavors`: Kueue's.
- `permissions`: whether the installation's restrictions allow what a job uses.
- `pending_search`: why pods are pending, from Events and claims.
"""
