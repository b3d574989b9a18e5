"""Jobs on real pods, on a cluster whose nodes are on this machine. Needs root and the images."""

import asyncio
import contextlib
import os
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence

from testing.cluster import binaries, lifecycle, settings
from testing.e2e import jobs, kubectl_namespaces, operator, volumes
from testing.random_kills import campaign_run, kills
from tfparallel_operator.api import job_status
from tfparallel_trainer.contract import environment

_NAME = "kills"
_LOOK_FOR_PODS_SECONDS = 0.2
_PROC = pathlib.Path("/proc")


@contextlib.contextmanager
def namespaces() -> Iterator[kubectl_namespaces.Make]:
    """Start a cluster of its own with the operator; yields what makes namespaces."""
    binaries.ensure(binaries.FULL)
    name = f"{_NAME}-{os.getpid()}"
    cluster = lifecycle.up(name, settings.Full())
    try:
        with operator.running(cluster), kubectl_namespaces.maker(cluster) as make:
            yield make
    finally:
        lifecycle.down(name)


class Trainers:
    """The trainers in the pods of a job, which are processes of this machine."""

    def __init__(self, job_uid: str) -> None:
        self._mark = f"{environment.JOB_UID}={job_uid}".encode()
        self._agents: Mapping[str, int] = {}
        self._looked = 0.0

    def trainer_ids(self) -> Mapping[str, int]:
        """Return the process ids of the trainers that run now, by their pods."""
        if time.monotonic() > self._looked + _LOOK_FOR_PODS_SECONDS:
            self._agents = dict(self._find_agents())
            self._looked = time.monotonic()
        ids: dict[str, int] = {}
        for pod, agent in self._agents.items():
            with contextlib.suppress(OSError):
                children = (_PROC / f"{agent}/task/{agent}/children").read_text().split()
                for child in filter(kills.is_trainer, map(int, children)):
                    ids[pod] = child
        return ids

    def _find_agents(self) -> Iterator[tuple[str, int]]:
        for process in _PROC.glob("[0-9]*"):
            with contextlib.suppress(OSError):
                number = int(process.name)
                if not kills.is_trainer(number) or kills.is_trainer(kills.parent_of(number)):
                    continue
                variables = (process / "environ").read_bytes().split(b"\0")
                if self._mark in variables:
                    [name] = [text for text in variables if text.startswith(b"HOSTNAME=")]
                    yield name.decode().partition("=")[2], number


def run(
    make: kubectl_namespaces.Make,
    folder: pathlib.Path,
    strategy: str,
    drawn: Sequence[kills.Kill],
) -> campaign_run.CampaignRun:
    """Run a job to its end in a namespace of its own, and fetch its results into a new folder."""
    namespace = make(_NAME)
    volume = volumes.make(namespace, _NAME)
    model = f"--from-file=model.py={campaign_run.MODEL}"
    namespace.kubectl("create", "configmap", _NAME, model)
    begun = time.monotonic()
    namespace.apply(jobs.job(_NAME, **campaign_run.spec(strategy, source=_NAME, claim=_NAME)))
    uid = namespace.job(_NAME)["metadata"]["uid"]
    killer = kills.Killer(drawn, namespace.lose)
    ended = asyncio.run(_watch(namespace, killer, Trainers(uid)))
    seconds = time.monotonic() - begun
    results = volume.fetch(_NAME, folder)
    namespace.kubectl("delete", "tfparalleljob", _NAME)
    namespace.wait_gone(_NAME)
    status = job_status.JobStatus.model_validate(ended["status"])
    return campaign_run.judge(strategy, status, killer, results, seconds)


async def _watch(
    namespace: kubectl_namespaces.KubectlNamespace, killer: kills.Killer, trainers: Trainers
) -> kubectl_namespaces.Object:
    watching = asyncio.create_task(killer.run(trainers))
    try:
        return await asyncio.to_thread(namespace.wait_ended, _NAME)
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
