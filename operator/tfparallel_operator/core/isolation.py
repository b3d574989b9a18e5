"""The NetworkPolicy of a job: its pods take connections from each other and from nobody else."""

from tfparallel_operator.api import types
from tfparallel_operator.core import build, decision, ownership


def isolated(job: types.TFParallelJob) -> bool:
    """Whether the job has a NetworkPolicy."""
    return job.spec.network is types.Network.ISOLATED


def policy(job: types.TFParallelJob) -> decision.Manifest:
    """Build the policy. It says nothing of ports: NCCL takes any that are free.

    What pods connect to is not restricted: data, images and the progress endpoint are anywhere.
    """
    pods = {"podSelector": {"matchLabels": ownership.labels(job)}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": ownership.metadata(job, build.config_name(job)),
        "spec": {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]},
    }
