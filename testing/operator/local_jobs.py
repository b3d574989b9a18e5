"""Jobs for the tests of the local backend, and what a test sees of their runs."""

import dataclasses
import json
import os
import pathlib
import shlex
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from tfparallel.backends.local import local_run, watcher
from tfparallel.job_source import source
from tfparallel_operator.api import job_status
from tfparallel_operator.core import decision
from tfparallel_trainer.contract import environment

MARK = "LOCAL_TEST_MARK"
"""A variable that every process of a test carries, and so is found by."""

MODULE = "def build_model(): ...\ndef training_data(): ...\n"
"""The text of a module that has what it must define, for jobs that never train."""


def template(command: Any, **container: Any) -> dict[str, Any]:
    """A pod template with one container; pod_spec brings fields beside it."""
    pod_spec = container.pop("pod_spec", {})
    trains = {"name": "tensorflow", "image": "none", "command": command, **container}
    return {"spec": {"containers": [trains], **pod_spec}}


def job(roles: Mapping[str, Any], name: str = "job", **spec: Any) -> dict[str, Any]:
    """A job document; a role is a command, or a whole replica spec."""
    return {
        "apiVersion": "tfparallel.dev/v1alpha1",
        "kind": "TFParallelJob",
        "metadata": {"name": name},
        "spec": {
            "tfReplicaSpecs": {
                role: replica if isinstance(replica, dict) else {"template": template(replica)}
                for role, replica in roles.items()
            },
            **spec,
        },
    }


def shell(text: str) -> list[str]:
    """A command that runs a line of shell."""
    return ["sh", "-c", text]


def meet(number: int, file: str = "met") -> str:
    """A line of shell that waits until so many processes have come to it."""
    return f"echo >> {file}; while [ $(wc -l < {file}) -lt {number} ]; do sleep 0.05; done"


def ending_together(file: pathlib.Path, folder: pathlib.Path) -> list[str]:
    """Changes to a job's file: the first process to come to its end waits for all the others.

    Its end may end the job, and with it what others have not written yet.
    """
    roles = yaml.safe_load(file.read_text(encoding="utf-8"))["spec"]["tfReplicaSpecs"]
    number = sum(spec.get("replicas", 1) for spec in roles.values())
    last = f"code=$?; {meet(number, shlex.quote(str(folder / 'met')))}; exit $code"
    changes = []
    for role, spec in roles.items():
        [container] = spec["template"]["spec"]["containers"]
        command = shell(f"{shlex.join(container['command'])}; {last}")
        changed = json.dumps([{**container, "command": command}])
        changes.append(f"--set=spec.tfReplicaSpecs.{role}.template.spec.containers={changed}")
    return changes


def write(folder: pathlib.Path, *documents: Any) -> pathlib.Path:
    """Write a job's file."""
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    return file


@dataclasses.dataclass(slots=True)
class RecordingWatcher:
    """A watcher that keeps each report."""

    placements: Sequence[watcher.Placement] = ()
    lines: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    events: list[decision.JobEvent] = dataclasses.field(default_factory=list)
    reports: list[job_status.ProgressStatus] = dataclasses.field(default_factory=list)
    splits: list[job_status.PlacementStatus] = dataclasses.field(default_factory=list)

    def placed(self, placements: Sequence[watcher.Placement]) -> None:
        self.placements = placements

    def line(self, replica: str, text: str) -> None:
        self.lines.append((replica, text))

    def event(self, event: decision.JobEvent) -> None:
        self.events.append(event)

    def split(self, placement: job_status.PlacementStatus) -> None:
        self.splits.append(placement)

    def progress(self, progress: job_status.ProgressStatus) -> None:
        self.reports.append(progress)

    def stopping(self) -> None:
        """Nothing to keep."""

    def lines_of(self, replica: str) -> list[str]:
        """The lines of one replica."""
        return [text for name, text in self.lines if name == replica]


async def finish(
    folder: pathlib.Path, *documents: Any, output: str = "out"
) -> tuple[local_run.RunResult, RecordingWatcher]:
    """Run a job to its end."""
    recorder = RecordingWatcher()
    job_source = source.read(write(folder, *documents))
    return await local_run.run(job_source, folder / output, recorder), recorder


def new_mark() -> str:
    """A value that no other process carries."""
    return uuid.uuid4().hex


def processes(mark: str) -> list[int]:
    """Ids of the living processes whose environment holds a mark."""
    pids = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and f"{MARK}={mark}".encode() in _environment(entry):
                pids.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in pids if pid != os.getpid()]


def chain(mark: str, worker: int) -> list[int]:
    """Ids of a worker's processes, from the supervisor to the trainer."""
    by_parent = {}
    for pid in processes(mark):
        try:
            variables = _environment(pathlib.Path(f"/proc/{pid}")).split(b"\0")
            status = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
        except OSError:
            continue
        config = dict(line.partition(b"=")[::2] for line in variables)
        if json.loads(config[environment.TF_CONFIG.encode()])["task"]["index"] == worker:
            by_parent[int(status.split()[1])] = pid
    pids, parent = [], os.getpid()
    while parent in by_parent:
        parent = by_parent[parent]
        pids.append(parent)
    return pids


def _environment(entry: pathlib.Path) -> bytes:
    return (entry / "environ").read_bytes()
