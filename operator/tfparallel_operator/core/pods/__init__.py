"""What a job's replicas need in a cluster: pods, and what they read, mount and connect to.

- `pod_builder`: the pod of a replica; `trainer_container` and `sources` fill in the shipped trainer
- `cluster_spec`: TF_CONFIG; `topology`, `host_network`: where pods run and listen
- `config`, `network`, `claims`: the ConfigMap, the Service and the NetworkPolicy, the claims
- `gpus`, `memory`, `containers`, `progress_report`: parts of a container
- `ownership`: labels and owner of everything that is created
"""
