"""Builds the objects of a job's replicas: pods, and the objects that pods read, mount and use.

- `pod_builder`: the pod of a replica.
- `trainer_container`, `sources`: what the shipped trainer adds to it.
- `cluster_spec`: TF_CONFIG.
- `topology`, `host_network`: where pods run and listen.
- `config`: the ConfigMap; `network`: the Service and the NetworkPolicy; `claims`: the claims.
- `gpus`, `memory`, `containers`, `expansion`, `progress_report`: parts of a container.
- `restrictions`: what the pods of a job use, and whether the installation lets them.
- `ownership`: labels and owner of everything that is created.
"""
