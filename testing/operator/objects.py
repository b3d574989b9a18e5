"""Objects as the API server would show them, for tests that have none."""

from typing import Any

from tfparallel_operator.api import names

UID = "job-uid"


def owner(name: str = "digits", uid: str = UID) -> dict[str, Any]:
    """Return the reference of a child to its job."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": name,
        "uid": uid,
        "controller": True,
    }


def labels(role: str = "worker", index: int = 0, attempt: int = 1) -> dict[str, str]:
    """Return the labels of a pod."""
    return {
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        names.LABEL_ROLE: role,
        names.LABEL_INDEX: str(index),
        names.LABEL_ATTEMPT: str(attempt),
        names.LABEL_REPLICA_ATTEMPT: "0",
    }


def pod(
    name: str = "digits-worker-0", version: int = 1, uid: str = "pod-uid", **status: Any
) -> dict[str, Any]:
    """Return a pod of the job with a status."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid,
            "resourceVersion": str(version),
            "labels": labels(),
            "ownerReferences": [owner()],
        },
        "status": status,
    }


def container(**state: Any) -> dict[str, Any]:
    """Return the state of the container that trains, as part of a pod's status."""
    return {"containerStatuses": [{"name": names.CONTAINER, "state": state}]}


def template(**pod_spec: Any) -> dict[str, Any]:
    """Return a pod template; without controllers nobody would fill in the service account."""
    spec_of_pod = {"containers": [{"name": names.CONTAINER, "image": "trainer:test"}]}
    return {"spec": {"serviceAccountName": "default", **spec_of_pod, **pod_spec}}


def job(name: str = "digits", workers: int = 2, **spec: Any) -> dict[str, Any]:
    """Return a job with a chief and workers."""
    roles: dict[str, Any] = {"Chief": {"template": template()}}
    if workers:
        roles["Worker"] = {"replicas": workers, "template": template()}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name},
        "spec": {"tfReplicaSpecs": roles, **spec},
    }


def claim_template(name: str = "data") -> dict[str, Any]:
    """Return one of a job's volumeClaimTemplates."""
    resources = {"requests": {"storage": "1Gi"}}
    return {
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": resources},
    }
