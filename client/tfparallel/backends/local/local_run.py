"""Runs one job on this machine: observes, decides and applies until the job has ended."""

import asyncio
import contextlib
import dataclasses
import datetime
import os
import pathlib
import secrets
import shlex
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

import pydantic
import yaml

from tfparallel.backends.local import (
    cluster,
    folders,
    launch,
    locks,
    progress_endpoint,
    replica_addresses,
    volumes,
    watcher,
)
from tfparallel.job_source import key_maps
from tfparallel.job_source import source as job_source
from tfparallel_operator import wall_clock
from tfparallel_operator.api import job_status, load, names, problems, types
from tfparallel_operator.core import decide, installation, observation, replicas
from tfparallel_operator.core.layout import Layout
from tfparallel_operator.core.life import cleanup
from tfparallel_operator.core.pods import config, pod_builder
from tfparallel_operator.core.status import conditions, goodput

TRAINER_IMAGE = "tfparallel-trainer"
"""Image in the manifests of pods without a template. Nothing pulls it here."""

Companion = Callable[[cluster.LocalCluster, pathlib.Path | None], Coroutine[Any, Any, None]]
"""Runs while a job runs. It gets the cluster and the folder of the trainer's results, and is
cancelled when the job has ended."""

_NONE = datetime.timedelta()
"""Local runs need no settling time and no restart backoff."""

_OTHER_FILE = "{}: not the status of a run; give --output another folder"

_ENDING = (signal.SIGINT, signal.SIGTERM)


@dataclasses.dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended."""

    job: types.TFParallelJob
    layout: folders.Folders
    trained: pathlib.Path | None
    """Folder of the shipped trainer's results; None: the job ran the user's own command."""
    stopped_by: signal.Signals | None
    """The signal that ended the run before the job had ended."""


async def run(
    source: job_source.JobSource,
    output: pathlib.Path,
    observer: watcher.Watcher,
    clock: wall_clock.Clock = wall_clock.utc_now,
    wrappers: Mapping[str, Sequence[str]] | None = None,
    companion: Companion | None = None,
    relayed: Mapping[str, replica_addresses.RelayedAddress] | None = None,
) -> RunResult:
    """Run a job to its end in an output folder, which may be that of an earlier run.

    Args:
        source: the job and what belongs to it.
        wrappers: by the names of replicas, such as worker-1: a program, with its arguments, that
            starts the replica's command.
        companion: runs while the job runs. If it fails, the job's processes end.
        relayed: by the names of replicas: the addresses of those before which the companion relays.

    Raises:
        SpecError: the job asks for what only a cluster can give, or the folder is in use.
    """
    run_folders = folders.Folders(output.resolve())
    with _locked(run_folders):
        job = _going_on(source.job, run_folders)
        manifest = source.job.model_dump(
            mode="json", by_alias=True, exclude_unset=True, exclude={"status"}
        )
        folders.write_whole(run_folders.manifest, yaml.safe_dump(manifest, sort_keys=False))
        requested = cluster.lay_out(job)
        token = secrets.token_urlsafe(32)
        addresses = replica_addresses.assign(requested, relayed or {})
        launcher = launch.Launcher(
            disk=volumes.Volumes(run_folders, source.folder, token, source.secrets),
            addresses=replica_addresses.build_substitutions(requested, addresses, relayed or {}),
            replicas=len(addresses),
            inherited=os.environ,
            wrappers={
                replica.pod_name(job.metadata.name): (wrappers or {}).get(replica.name, ())
                for replica in addresses
            },
            overrides=source.environment,
        )
        translations = _translations(requested, launcher, source.config_maps)
        trained = translations[requested.coordinator].output
        observer.placed(_placements(translations, addresses))
        async with asyncio.TaskGroup() as tasks:
            local = cluster.LocalCluster(
                job,
                launcher=launcher,
                config_maps=source.config_maps,
                run_folders=run_folders,
                observer=observer,
                clock=clock,
                tasks=tasks,
            )
            task = None if companion is None else tasks.create_task(companion(local, trained))
            stopped_by = await _live(local, token, observer, clock)
            if task is not None:
                task.cancel()
        return RunResult(local.job, run_folders, trained, stopped_by)


async def _live(
    local: cluster.LocalCluster, token: str, observer: watcher.Watcher, clock: wall_clock.Clock
) -> signal.Signals | None:
    """Run the job until it has ended or a signal ends it; return the signal."""
    async with progress_endpoint.endpoint(local.job, token, local.report, local.respond) as url:
        local.listen(f"{url}{progress_endpoint.AGENTS_PATH}")
        settings = installation.InstallationSettings(
            trainer_image=TRAINER_IMAGE,
            progress_url=url,
            first_pause=_NONE,
            settling=_NONE,
            share_above=None,
        )
        with _Interruption(local, observer) as interruption:
            try:
                await _drive(local, settings, interruption, clock)
                if interruption.received is not None:
                    local.suspend(interruption.received)
                local.stop()
                await local.emptied()
            except BaseException:
                local.kill()
                raise
            return interruption.received


async def _drive(
    local: cluster.LocalCluster,
    settings: installation.InstallationSettings,
    interruption: "_Interruption",
    clock: wall_clock.Clock,
) -> None:
    while interruption.received is None:
        now = clock().replace(microsecond=0)
        decided = decide.decide(
            cluster.lay_out(local.job), local.observe(), observation.Environment(), now, settings
        )
        if await local.apply(decided):
            continue
        pods = local.observe().pods
        at_work = cleanup.grace_until(local.job, local.job.status, pods, now)
        if conditions.finished(local.job.status) and local.settled and at_work is None:
            return
        await local.wait(decided.wake_at)


class _Interruption:
    """Ctrl-C and SIGTERM: the first asks every process to end, the second ends them at once."""

    def __init__(self, local: cluster.LocalCluster, observer: watcher.Watcher) -> None:
        self.received: signal.Signals | None = None
        self._local = local
        self._observer = observer

    def __enter__(self) -> "_Interruption":
        loop = asyncio.get_running_loop()
        for number in _ENDING:
            loop.add_signal_handler(number, self._take, number)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in _ENDING:
            loop.remove_signal_handler(number)

    def _take(self, number: signal.Signals) -> None:
        if self.received is None:
            self.received = number
            self._observer.stopping()
            self._local.wake()
        else:
            self._local.kill()


@contextlib.contextmanager
def _locked(layout: folders.Folders) -> Iterator[None]:
    """Lock the output folder for this process, so that no second run uses it."""
    with folders.output(layout.root):
        lock = layout.lock.open("a", encoding="utf-8")
    with lock:
        if not locks.acquire(lock):
            raise load.SpecError(
                f"--output {layout.root}: another run uses this folder; wait for its end or give"
                " another one"
            )
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        try:
            yield
        finally:
            lock.truncate(0)


def _going_on(job: types.TFParallelJob, layout: folders.Folders) -> types.TFParallelJob:
    """Resume an earlier run from its folder, as a suspended job is resumed.

    Its next attempt has a new number, so that no writer of an earlier one is taken for it.
    """
    if not layout.status.exists():
        return job
    earlier = _read_status(layout.status)
    spent = goodput.end_at_known_time(earlier).goodput
    ended_at = datetime.datetime.fromtimestamp(layout.status.stat().st_mtime, datetime.UTC)
    left = conditions.Stamp(ended_at, generation=0).set(
        job_status.JobStatus(attempt=earlier.attempt, goodput=spent),
        names.ConditionType.SUSPENDED,
        True,
        names.Reason.JOB_SUSPENDED,
        "an earlier run in this folder has ended",
    )
    return job.model_copy(update={"status": left})


def _read_status(file: pathlib.Path) -> job_status.JobStatus:
    """Read the status that an earlier run wrote: it always has an attempt."""
    try:
        status = job_status.JobStatus.model_validate_json(file.read_bytes())
    except pydantic.ValidationError as error:
        raise load.SpecError(_OTHER_FILE.format(file)) from error
    if "attempt" not in status.model_fields_set:
        raise load.SpecError(_OTHER_FILE.format(file))
    return status


def _translations(
    layout: Layout, launcher: launch.Launcher, config_maps: key_maps.KeyMaps
) -> Mapping[replicas.Replica, launch.Translation]:
    """Translate every pod before anything starts, so that problems are reported at once.

    Raises:
        SpecError: with a sentence for each role that asks for what only a cluster can give.
    """
    settings = installation.InstallationSettings(trainer_image=TRAINER_IMAGE, share_above=None)
    config_map = config.manifest(layout, settings)
    all_config_maps = {**config_maps, config_map["metadata"]["name"]: config_map["data"]}
    builder = pod_builder.PodBuilder(layout, settings, job_status.JobStatus(attempt=1))
    translations, faults = {}, {}
    for replica in layout.all_replicas:
        manifest = builder.build(replica)
        try:
            translations[replica] = launcher.translate(manifest, all_config_maps)
        except load.SpecError as error:
            template = layout.specs[replica.role].template
            field = ("tfReplicaSpecs", replica.role.value, "template") if template else ("trainer",)
            faults[replica.role] = problems.Problem(("spec", *field), str(error))
    if faults:
        raise load.SpecError(*faults.values())
    return translations


def _placements(
    translations: Mapping[replicas.Replica, launch.Translation],
    addresses: Mapping[replicas.Replica, str],
) -> Sequence[watcher.Placement]:
    return [
        watcher.Placement(replica.name, addresses[replica], _shown(translation.launch.command))
        for replica, translation in translations.items()
    ]


def _shown(command: Sequence[str]) -> str:
    """Return a command for people, without the path of this Python."""
    arguments = ["python" if word == sys.executable else word for word in command]
    return shlex.join(arguments)
