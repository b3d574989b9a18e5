"""Reads what a run left: from a folder of this machine, or from a cluster."""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import itertools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pydantic
import yaml

from tfparallel import errors, models, train_log
from tfparallel.backends.cluster import cluster_backend
from tfparallel.backends.local import detached, folders, record
from tfparallel.report import log_tails, pods, run_records
from tfparallel.results import files, folder, stores
from tfparallel_operator import wall_clock
from tfparallel_operator.api import job_status, load, names
from tfparallel_operator.core import pending_reasons
from tfparallel_operator.core.status import conditions, goodput
from tfparallel_trainer.contract import outputs

_FILES = (outputs.TRAIN_LOG, outputs.SUMMARY, outputs.PIPELINE)

_RUN_BEGINS = frozenset({names.Reason.JOB_STARTED, names.Reason.JOB_RESUMED})
"""The first event of each run in a folder."""

_SCRIPT = (
    "The job runs a script, which has left no records: tfparallel_trainer.fit writes them below its"
    " output_dir. If the script writes event files, see them with tfparallel tensorboard."
)


async def gather_folder(path: pathlib.Path, results: str | None = None) -> run_records.RunRecords:
    """Read a local run.

    Args:
        path: the folder of a run, or runs/JOB: its newest run.
        results: where a script writes, as its container sees it; None: below any of its claims.

    Raises:
        Failure: the script's container mounts no claim there that it may write to.
        SpecError: it is not a run, or one of its files cannot be read.
    """
    root = folder.newest(path)
    layout = folders.Folders(root)
    if not layout.status.exists():
        raise load.SpecError(
            f"{path}: no run is in this folder: {folders.STATUS_FILE} is missing. Give the folder"
            " of a run, such as runs/JOB/TIME"
        )
    is_running = detached.DetachedRun(layout).is_running
    with _naming(layout.status):
        status = job_status.JobStatus.model_validate_json(layout.status.read_bytes())
    status = status if is_running else goodput.end_at_known_time(status)
    with _naming(layout.events):
        events = record.read_events(layout)
    with _naming(layout.pod_changes):
        changes = record.read_pod_changes(layout)
    with _naming(layout.manifest):
        manifest = _read_manifest(layout)
    name = manifest.get("metadata", {}).get("name") or _name_of_pods(layout) or root.name
    moments = [event.time for event in events] + [change.time for change in changes]
    job = models.Job(
        name=name,
        namespace=manifest.get("metadata", {}).get("namespace", "default"),
        uid="",
        created=min([*moments[:1], status.start_time or _modified(layout.status)]),
        status=status,
        manifest=manifest,
    )
    texts = await _read_results(root, results)
    trained = _parse(texts)
    last = max([*moments, *(line.time for line in trained[-1:])], default=_modified(layout.status))
    is_over = conditions.finished(status) or status.state == names.State.SUSPENDED
    return run_records.RunRecords(
        job=job,
        source=str(root),
        now=wall_clock.utc_now() if is_running else last,
        is_cut_off=not is_running and not is_over,
        events=[event.for_job(name) for event in events],
        pods=list(_pod_runs(changes, _last_signs(events, changes, trained, is_running=is_running))),
        records=trained,
        **_other_results(texts),
        versions={"tfparallel": importlib.metadata.version("tfparallel")},
        missing_results="" if texts else _SCRIPT if manifest and job.is_script else "",
        is_local=True,
        log=None if is_running else log_tails.of_folder(job, layout, changes),
    )


async def gather_job(
    cluster: cluster_backend.ClusterBackend,
    name: str,
    choice: stores.StoreOptions,
    say: Callable[[str], None],
) -> run_records.RunRecords:
    """Read a job of a cluster.

    Args:
        choice: what the user says of the place of its results.

    Raises:
        JobNotFound: no job has the name.
        SpecError: its train log cannot be read.
    """
    job = _with_state(await cluster.get_job(name))
    events = await cluster.list_events(job)
    replicas = await cluster.list_replicas(job)
    texts, missing = await _read_results_of_job(cluster, job, choice, say)
    job_events = pending_reasons.of_object(events, names.SINGULAR, job.name)
    return run_records.RunRecords(
        job=job,
        source=f"in namespace {job.namespace}",
        now=wall_clock.utc_now(),
        events=job_events,
        pods=pods.find(job, replicas, job_events, events),
        records=_parse(texts),
        **_other_results(texts),
        versions=dict(await _versions(cluster)),
        missing_results=missing,
        log=await log_tails.of_job(cluster, job, replicas),
    )


async def _read_results_of_job(
    cluster: cluster_backend.ClusterBackend,
    job: models.Job,
    choice: stores.StoreOptions,
    say: Callable[[str], None],
) -> tuple[Mapping[str, str], str]:
    """Return the texts of a job's results, and why there are none."""
    if job.state == names.State.PENDING and job.status.progress is None:
        # A reader of its claim could bind the claim to a node that the job cannot use.
        return {}, f"The job is Pending. See why: tfparallel why {job.name}"
    try:
        async with stores.opened(cluster, job, choice, say) as store:
            texts = await _read(store)
    except (errors.Failure, load.SpecError) as error:
        return {}, f"The records of training cannot be read: {error}."
    return texts, _SCRIPT if job.is_script and not texts else ""


async def _read_results(root: pathlib.Path, path: str | None) -> Mapping[str, str]:
    of_script = None if path is None else folder.find_of_script(root, path)
    try:
        return await _read(of_script or folder.find(root))
    except errors.Failure:
        return {}


async def _read(store: files.Store) -> Mapping[str, str]:
    """Return the texts of the files that a report needs, by their paths in the results.

    A script chooses where in its claim they are.
    """
    listed = {pathlib.PurePosixPath(file.path): file for file in await store.list_files()}
    logs = [path for path in listed if path.match(outputs.TRAIN_LOG)]
    log = min(logs, key=lambda path: (len(path.parts), path), default=None)
    root = pathlib.PurePosixPath() if log is None else log.parents[1]
    texts = {}
    for name in _FILES:
        file = listed.get(root / name)
        if file is not None and not file.problem:
            with contextlib.suppress(files.LeftOutError):
                chunks = [chunk async for chunk in store.read(file, 0)]
                texts[name] = b"".join(chunks).decode(errors="replace")
    return texts


def _parse(texts: Mapping[str, str]) -> Sequence[train_log.Record]:
    return train_log.parse(texts.get(outputs.TRAIN_LOG, ""), outputs.TRAIN_LOG)


def _other_results(texts: Mapping[str, str]) -> dict[str, Any]:
    parsers = {
        "summary": (outputs.SUMMARY, run_records.parse_summary),
        "stages": (outputs.PIPELINE, run_records.parse_pipeline),
    }
    return {field: parse(texts[path]) for field, (path, parse) in parsers.items() if path in texts}


async def _versions(cluster: cluster_backend.ClusterBackend) -> Sequence[tuple[str, str]]:
    operators = await cluster.list_operators() or ()
    listed = [("operator", operator.version) for operator in operators if operator.version]
    return [("tfparallel", importlib.metadata.version("tfparallel")), *listed]


def _read_manifest(layout: folders.Folders) -> Mapping[str, Any]:
    """Return the manifest of a run; nothing where an older version ran it."""
    if not layout.manifest.exists():
        return {}
    manifest = yaml.safe_load(layout.manifest.read_text(encoding="utf-8"))
    if not isinstance(manifest, dict):
        raise ValueError("it is no manifest")
    return manifest


def _name_of_pods(layout: folders.Folders) -> str:
    job_pods = record.read_pods(layout)
    return job_pods[0].name.removesuffix(f"-{job_pods[0].replica}") if job_pods else ""


def _last_signs(
    events: Sequence[record.Event],
    changes: Sequence[record.PodChange],
    trained: Sequence[train_log.Record],
    *,
    is_running: bool,
) -> Sequence[datetime.datetime]:
    """Return when each run in a folder, but one that runs, left a sign for the last time."""
    starts = [event.time for event in events if event.reason in _RUN_BEGINS]
    moments = ([event.time for event in kind] for kind in (events, changes, trained))
    signs = sorted(itertools.chain.from_iterable(moments))
    before = [[sign for sign in signs if sign < start] for start in starts[1:]]
    return [times[-1] for times in (*before, [] if is_running else signs) if times]


def _pod_runs(
    changes: Sequence[record.PodChange], last_signs: Sequence[datetime.datetime]
) -> Iterator[run_records.PodRun]:
    """Yield the processes of all replicas in the order of their starts.

    One whose end is not on record was killed with its run, which `last_signs` tells from later.
    """
    for index, change in enumerate(changes):
        if change.phase.ended:
            continue
        end = next((later for later in changes[index + 1 :] if later.name == change.name), None)
        is_seen = end is not None and end.phase.ended
        killed = next((sign for sign in last_signs if change.time <= sign), None)
        yield run_records.PodRun(
            replica=change.replica,
            pod=change.name,
            attempt=change.attempt,
            node="",
            started=change.time,
            ended=end.time if end is not None and is_seen else killed,
            outcome=pods.describe_end(end.reason, end.exit_code)
            if end is not None and is_seen
            else "runs"
            if killed is None
            else "its end is not on record",
        )


def _with_state(job: models.Job) -> models.Job:
    """Return a job whose state follows from its conditions, if an older operator wrote none."""
    if job.status.state is not None:
        return job
    state = conditions.state(job.status)
    return dataclasses.replace(job, status=job.status.model_copy(update={"state": state}))


def _modified(path: pathlib.Path) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC)


@contextlib.contextmanager
def _naming(file: pathlib.Path) -> Iterator[None]:
    """Name the file that cannot be read.

    Raises:
        SpecError: it cannot be read.
    """
    try:
        yield
    except (ValueError, yaml.YAMLError) as error:
        raise load.SpecError(
            f"{file}: cannot be read ({_first_line(error)}). Write the report with the version of"
            " tfparallel that ran the job"
        ) from error


def _first_line(error: Exception) -> str:
    if isinstance(error, pydantic.ValidationError):
        return str(error.errors()[0]["msg"])
    return str(error).splitlines()[0]
