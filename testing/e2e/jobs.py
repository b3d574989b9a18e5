"""Jobs for tests that no example covers."""

from typing import Any

from images import targets
from testing.e2e import kubectl_namespaces

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def job(name: str, **spec: Any) -> kubectl_namespaces.Object:
    return {
        "apiVersion": "tfparallel.dev/v1alpha1",
        "kind": "TFParallelJob",
        "metadata": {"name": name},
        "spec": spec,
    }


def trained(name: str, *, workers: int = 1, **trainer: Any) -> kubectl_namespaces.Object:
    """A job of the shipped trainer, its module in the ConfigMap of the same name."""
    return job(
        name,
        trainer={"source": {"configMap": {"name": name}}, **trainer},
        tfReplicaSpecs={"Chief": {}, "Worker": {"replicas": workers}},
    )


def script(source: str, **replica: Any) -> kubectl_namespaces.Object:
    """A role whose replicas run a Python script of their own."""
    container = {
        "name": "tensorflow",
        "image": targets.TRAINER.reference,
        "command": ["python", "-c", source],
        "securityContext": RESTRICTED,
    }
    # The first process of a container ignores SIGTERM unless it says otherwise, as these do not.
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
    return {"template": {"spec": spec}, **replica}
