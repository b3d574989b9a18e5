"""The runs of a comparison: jobs that follow from the user's job. Pure."""

import copy
import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

from tfparallel.job_source.source import JobSource
from tfparallel_operator.api import load, names, types
from tfparallel_trainer.contract import environment


class Mode(enum.StrEnum):
    """How the workers train together."""

    SYNC = "sync"
    ASYNC = "async"


class Equal(enum.StrEnum):
    """What is equal in both modes."""

    UPDATE = "update"
    """The examples of an update of the weights: both make the same number of them."""
    WORKER = "worker"
    """The examples of a worker's step: with N workers async makes N times as many updates."""


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """A column of the comparison."""

    mode: Mode
    slow_worker: float | None = None
    """How many times slower one worker is; None: all are equally fast."""

    @property
    def slow(self) -> bool:
        """Whether one worker is slowed."""
        return self.slow_worker is not None

    @property
    def name(self) -> str:
        """What it is called in tables and pictures."""
        slow = f", worker {self.slow_worker:g}x slower" if self.slow_worker is not None else ""
        return f"{self.mode}{slow}"

    @property
    def label(self) -> str:
        """What it is called in names of folders."""
        return f"{self.mode}-slow" if self.slow else str(self.mode)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """How many runs a comparison has, and of what."""

    workers: int
    servers: int
    seeds: int
    slow_worker: float | None
    """How many times slower the last worker is in the runs that slow it; None: there are none."""
    equal: Equal

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The columns, in their order."""
        factors = (None,) if self.slow_worker is None else (None, self.slow_worker)
        return tuple(Variant(mode, factor) for factor in factors for mode in Mode)

    @property
    def slowed(self) -> Mapping[str, float]:
        """The factor of the worker that is slowed."""
        if self.slow_worker is None:
            return {}
        return {f"worker-{self.workers - 1}": self.slow_worker}


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """One run to make."""

    variant: Variant
    seed: int
    source: JobSource

    @property
    def folder(self) -> str:
        """Its folder within that of the comparison."""
        return f"{self.variant.label}-seed{self.seed}"


def trials(job_source: JobSource, design: Design) -> Sequence[Trial]:
    """List the runs in their order: all variants of a seed, then those of the next.

    So what changes on the machine meanwhile meets all variants alike.

    Raises:
        SpecError: the job cannot be compared, or not with these numbers.
    """
    trainer = job_source.job.spec.trainer
    if trainer is None:
        raise load.SpecError(
            "spec.trainer: missing; tfparallel compare derives both runs from it: write it"
        )
    return [
        Trial(
            variant,
            seed,
            dataclasses.replace(job_source, job=_derived(job_source.job, variant, design, seed)),
        )
        for seed in range(trainer.seed, trainer.seed + design.seeds)
        for variant in design.variants
    ]


def _derived(
    job: types.TFParallelJob, variant: Variant, design: Design, seed: int
) -> types.TFParallelJob:
    document = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    document = {key: value for key, value in document.items() if key != "status"}
    spec = document["spec"]
    document["spec"] = {
        "strategy": _STRATEGY[variant.mode].value,
        "tfReplicaSpecs": _replicas(spec["tfReplicaSpecs"], variant.mode, design),
        "trainer": _trainer(spec["trainer"], variant.mode, design, seed),
        # A restart would spoil the figures: what fails, fails the comparison.
        "runPolicy": {**spec.get("runPolicy", {}), "backoffLimit": 0},
    }
    return load.parse_job(document)


_STRATEGY = {
    Mode.SYNC: types.Strategy.MULTI_WORKER_MIRRORED,
    Mode.ASYNC: types.Strategy.PARAMETER_SERVER,
}


def _replicas(specs: Mapping[str, Any], mode: Mode, design: Design) -> dict[str, Any]:
    leading = specs.get(types.Role.CHIEF) or specs.get(types.Role.MASTER) or {}
    worker = specs.get(types.Role.WORKER, leading)
    roles = {types.Role.WORKER.value: {**worker, "replicas": design.workers}}
    if mode is Mode.ASYNC:
        like = {key: value for key, value in worker.items() if key != "devices"}
        server = specs.get(types.Role.PS, like)
        roles[types.Role.PS.value] = {**server, "replicas": design.servers}
    for role in roles.values():
        role["template"] = _logging_steps(role.get("template") or {})
    return roles


def _logging_steps(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template of replicas that write the step log if they lead."""
    changed = copy.deepcopy(dict(template))
    containers = changed.setdefault("spec", {}).setdefault("containers", [])
    container = next(
        (container for container in containers if container.get("name") == names.CONTAINER), None
    )
    if container is None:
        container = {"name": names.CONTAINER}
        containers.append(container)
    variable = {"name": environment.STEP_LOG, "value": "1"}
    container["env"] = [*container.get("env", []), variable]
    return changed


def _trainer(fields: Mapping[str, Any], mode: Mode, design: Design, seed: int) -> dict[str, Any]:
    trainer = {**fields, "seed": seed}
    if mode is Mode.SYNC:
        trainer.pop("maxStaleness", None)
    elif design.equal is Equal.WORKER:
        size = trainer["globalBatchSize"]
        if size % design.workers:
            raise load.SpecError(
                f"spec.trainer.globalBatchSize: received {size}, which {design.workers} workers "
                "cannot share equally: give a multiple, or --equal-batch update"
            )
        trainer["globalBatchSize"] = size // design.workers
        if "steps" in trainer:
            trainer["steps"] *= design.workers
    return trainer
