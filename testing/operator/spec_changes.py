"""Changes of a job's manifest, as tests make them."""

from collections.abc import Callable
from typing import Any

Change = Callable[[dict[str, Any]], object]


def roles(job: dict[str, Any]) -> Any:
    return job["spec"]["tfReplicaSpecs"]


def trainer(**fields: Any) -> Change:
    return lambda job: job["spec"].update(trainer=fields)


def claims(*names: str, **spec: Any) -> Change:
    common = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    templates = [{"metadata": {"name": name}, "spec": {**common, **spec}} for name in names]
    return lambda job: job["spec"].update(volumeClaimTemplates=templates)


ARCHIVE = {"configMaps": ["code"], "sha256": "0" * 64}


def split(**mesh: Any) -> Change:
    """Give the job a chief and three workers of one device, and a mesh."""

    def change(job: dict[str, Any]) -> None:
        job["spec"].update(strategy="ModelSplit", mesh=mesh, trainer={"epochs": 1})
        job["spec"]["tfReplicaSpecs"] = {"Chief": {}, "Worker": {"replicas": 3}}

    return change
