"""From a loss on real pods to the next new step: a trainer that is killed, a pod that is deleted.

Pods whose agents wait restart in place. For comparison, the same job runs a command of its own, so
that its pods have no agents and all of them are replaced. Needs root or Docker, and the images.
"""

import contextlib
import datetime
import functools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from benchmarks import results, steps
from benchmarks.operators import arena
from testing import waiting
from testing.cluster import binaries, settings
from testing.e2e import jobs, kubectl_namespaces, operator, volumes
from tfparallel_operator.api import names
from tfparallel_trainer.contract import environment, outputs

NAME = "lost"
CLAIM = "output"
_COMMAND = ("env", "python", "-m", "tfparallel_trainer")
"""What a pod without an agent runs."""
_EVERY_STEPS = 20
_STEPS_BEFORE = 60
_LIMIT_SECONDS = 300.0
_AGAIN_SECONDS = 0.2
_STARTS_SECONDS = 1.0
"""What every start takes at least, up to its first step."""
_GANG = {"Chief": {}, "Worker": {"replicas": 1}}
_WITH_SERVER = {"Chief": {}, "Worker": {"replicas": 1}, "PS": {"replicas": 1}}

T = TypeVar("T")


def _kill(namespace: kubectl_namespaces.KubectlNamespace, pod: str) -> float:
    """Kill the process that trains: the child of an agent, or the container's first process."""
    if names.ANNOTATION_AGENT in namespace.pods(NAME)[pod]["metadata"].get("annotations", {}):
        return namespace.signal_trainer(pod, signal.SIGKILL)
    namespace.crash(pod)
    return time.time()


def _delete(namespace: kubectl_namespaces.KubectlNamespace, pod: str) -> float:
    now = time.time()
    namespace.lose(pod)
    return now


class Loss(NamedTuple):
    """What is taken from a job."""

    what: str
    target: float
    """Of the time with new pods."""
    replica: str
    take: Callable[[kubectl_namespaces.KubectlNamespace, str], float]
    """Takes it from a pod, and returns when, in seconds since 1970."""
    roles: Mapping[str, Mapping[str, int]]


LOSSES = (
    Loss("a trainer killed in its pod", 0.25, "worker-0", _kill, _GANG),
    Loss("a pod deleted by force", 0.5, "worker-0", _delete, _GANG),
    Loss("a parameter server killed in its pod", 0.45, "ps-0", _kill, _WITH_SERVER),
)


def measure(size: results.Size) -> list[results.Result]:
    """Lose a replica of small jobs with and without agents, in turns."""
    with _cluster() as make:
        return [_compare(loss, make, size.repeats) for loss in LOSSES]


def _compare(loss: Loss, make: kubectl_namespaces.Make, repeats: int) -> results.Result:
    return results.ratio(
        f"{loss.what} to the next new step",
        loss.target,
        *steps.in_turns(
            functools.partial(_sample, make, loss),
            functools.partial(_sample, make, loss, _COMMAND),
            repeats,
        ),
        "new pods",
    )


def _sample(
    make: kubectl_namespaces.Make, loss: Loss, command: tuple[str, ...] = ()
) -> list[float]:
    namespace = make("lost")
    volume = volumes.make(namespace, CLAIM)
    model = operator.example("digits", "model.py")
    namespace.kubectl("create", "configmap", NAME, f"--from-file=model.py={model}")
    namespace.apply(_job(loss.roles, command))
    _await(lambda: [step for step, _ in _steps(volume) if step >= _STEPS_BEFORE], "the first steps")
    lost_at = loss.take(namespace, f"{NAME}-{loss.replica}")
    [moment, *_] = _await(lambda: _new_steps(volume), "a new step")
    namespace.kubectl("delete", "tfparalleljob", NAME)
    namespace.wait_gone(NAME)
    return [moment - lost_at]


@contextlib.contextmanager
def _cluster() -> Iterator[kubectl_namespaces.Make]:
    kind = settings.Full() if os.geteuid() == 0 else settings.Kind()
    binaries.ensure(binaries.FULL)
    with (
        arena.cluster("restarts", kind) as running,
        operator.running(running),
        kubectl_namespaces.maker(running) as make,
    ):
        yield make


def _job(
    roles: Mapping[str, Mapping[str, int]], command: tuple[str, ...]
) -> kubectl_namespaces.Object:
    container: dict[str, Any] = {
        "name": names.CONTAINER,
        "env": [
            {"name": environment.STEP_LOG, "value": "1"},
            {"name": "OMP_NUM_THREADS", "value": "1"},
            {"name": "TF_NUM_INTRAOP_THREADS", "value": "1"},
        ],
        # A pod that asks for nothing gets nothing while others start.
        "resources": {"requests": {"cpu": "400m"}},
    }
    if command:
        container["command"] = list(command)
    template = {"spec": {"containers": [container]}}
    trainer = {
        "source": {"configMap": {"name": NAME}},
        "epochs": 100_000,
        "globalBatchSize": 64,
        "verify": "Off",
        "checkpoint": {"claim": CLAIM, "everySteps": _EVERY_STEPS},
    }
    specs = {role: {**fields, "template": template} for role, fields in roles.items()}
    return jobs.job(NAME, trainer=trainer, tfReplicaSpecs=specs)


def _new_steps(volume: volumes.Volume) -> Sequence[float]:
    """When steps ended that only the second attempt has made, in seconds since 1970."""
    events = map(json.loads, volume.read_lines(f"{NAME}/{outputs.TRAIN_LOG}"))
    first = outputs.TrainEvent.FIRST_STEP
    began = [event["time"] for event in events if event["event"] == first]
    if len(began) < 2:
        return ()
    # While a process starts, there is no step.
    start = datetime.datetime.fromisoformat(began[1]).timestamp() - _STARTS_SECONDS
    all_steps = _steps(volume)
    last = max(step for step, moment in all_steps if moment < start)
    return [moment for step, moment in all_steps if step > last and moment > start]


def _await(moments: Callable[[], Sequence[T]], what: str) -> Sequence[T]:
    return waiting.until(moments, what, _LIMIT_SECONDS, when=bool, poll=_AGAIN_SECONDS)


def _steps(volume: volumes.Volume) -> list[tuple[int, float]]:
    """Numbers of the steps, and when they ended, in seconds since 1970."""
    records = map(json.loads, volume.read_lines(f"{NAME}/{outputs.STEP_LOG}"))
    return [(int(record["step"]), float(record["time"])) for record in records if "step" in record]
