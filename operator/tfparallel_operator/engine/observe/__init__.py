"""What the engine knows of the cluster.

- `jobs`, `sweeper`: every job as last seen; kopf's watch and a list from time to time feed it.
- `informer`, `children`, `hidden`: list and watch of what belongs to jobs. `index`, `records`: what
  is kept of it.
- `specs`, `host_ports`, `flavors`: a job's last valid spec, free ports of nodes, Kueue's flavors.
- `permissions`: whether the installation lets a job have what it names.
- `waits`: what Events and claims say of pods that wait.
"""
