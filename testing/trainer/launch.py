"""Environments of trainer processes on this machine, and groups of them."""

import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from testing import branches, paths, waiting
from testing.trainer import trainer_processes
from tfparallel.backends.local import ports
from tfparallel_trainer.contract import environment, outputs

REPOSITORY = paths.ROOT
TRAINER = ("-m", "tfparallel_trainer")
_LIMIT_SECONDS = 150.0
ENDLESS = 100_000
"""Steps of a run that a test cuts off: it is not over before, however late that is."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended."""

    code: int | None
    """None while it runs."""
    output: str
    errors: str


class Group:
    """The processes of one attempt at a job; ends those that are left when it is closed."""

    def __init__(
        self,
        folder: pathlib.Path,
        environments: list[dict[str, str]],
        arguments: Sequence[str] = TRAINER,
        start: trainer_processes.Start = trainer_processes.forked,
    ) -> None:
        self.processes: list[trainer_processes.Process] = []
        self._files: list[tuple[pathlib.Path, pathlib.Path]] = []
        folder.mkdir(parents=True, exist_ok=True)
        for number, variables in enumerate(environments):
            stem = f"{time.monotonic_ns()}-{number}"
            out, err = folder / f"{stem}.out", folder / f"{stem}.err"
            all_variables = {**_base(), **variables}
            self.processes.append(
                start(trainer_processes.Command(arguments, all_variables, out, err))
            )
            self._files.append((out, err))

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def wait(self, limit: float = _LIMIT_SECONDS) -> list[Ended]:
        """Wait for all of them to end."""
        deadline = time.monotonic() + limit
        for process in self.processes:
            process.wait(max(0.1, deadline - time.monotonic()))
        return [self.result(number) for number in range(len(self.processes))]

    def finish(self, limit: float = _LIMIT_SECONDS) -> list[Ended]:
        """Wait until all have ended well; the chief first, because the others may wait for it."""
        assert self.processes[0].wait(limit) == 0, self.result(0)
        ended = self.wait(limit)
        assert all(process.code == 0 for process in ended), ended
        return ended

    def result(self, number: int) -> Ended:
        """What a process that has ended wrote."""
        out, err = self._files[number]
        return Ended(self.processes[number].poll(), out.read_text(), err.read_text())

    def end(self, number: int) -> str:
        """How a process has ended, for people; empty while it runs."""
        if self.processes[number].poll() is None:
            return ""
        return f"It has ended: {self.result(number)}"

    def wait_for_output(self, number: int, text: str, limit: float = _LIMIT_SECONDS) -> None:
        """Wait until a process has written something."""
        waiting.until(
            lambda: text in self._files[number][0].read_text(),
            f"{text!r} in {self._files[number]}",
            limit,
            in_vain=lambda: self.end(number),
            poll=0.02,
        )


def environments(
    folder: pathlib.Path,
    source: pathlib.Path,
    trainer: dict[str, object],
    *,
    processes: int = 1,
    devices: int = 1,
    strategy: str = "MultiWorkerMirrored",
    mesh: dict[str, object] | None = None,
    more: Mapping[str, str] = MappingProxyType({}),
) -> list[dict[str, str]]:
    """The environments of a job's processes: the first is the chief, the others are workers."""
    folder.mkdir(parents=True, exist_ok=True)
    job = folder / "job.json"
    # The checks against one process take seconds of each run, and few tests are about them.
    trainer = {"verify": "Off", **trainer}
    content: dict[str, object] = {"name": "test", "strategy": strategy, "trainer": trainer}
    job.write_text(json.dumps(content if mesh is None else {**content, "mesh": mesh}))
    addresses = [f"{ports.HOST}:{port}" for port in ports.allocate(processes)]
    cluster = {"chief": addresses[:1]}
    if processes > 1:
        cluster["worker"] = addresses[1:]
    tasks = [{"type": "chief", "index": 0}] + [
        {"type": "worker", "index": index} for index in range(processes - 1)
    ]
    return [
        {
            environment.JOB_FILE: str(job),
            environment.SOURCE_DIR: str(source),
            environment.OUTPUT_DIR: str(folder / "output"),
            environment.CPU_DEVICES: str(devices),
            environment.TF_CONFIG: json.dumps({"cluster": cluster, "task": task}),
            **more,
        }
        for task in tasks
    ]


def sharing(folder: pathlib.Path, all_variables: list[dict[str, str]]) -> list[dict[str, str]]:
    """The same processes with their cluster in a file, as the replicas of a large job have it."""
    configs = [json.loads(variables[environment.TF_CONFIG]) for variables in all_variables]
    cluster = configs[0]["cluster"]
    workers = str(len(cluster["worker"]))
    # One worker more than there is, as where workers come and go.
    cluster["worker"].append("127.0.0.1:1")
    file = folder / "cluster.json"
    file.write_text(json.dumps(cluster))
    return [
        {
            **variables,
            environment.TF_CONFIG: json.dumps({"task": config["task"]}),
            environment.CLUSTER_FILE: str(file),
            environment.WORKERS: workers,
        }
        for variables, config in zip(all_variables, configs, strict=True)
    ]


def with_servers(
    folder: pathlib.Path,
    source: pathlib.Path,
    trainer: dict[str, object],
    *,
    workers: int = 2,
    servers: int = 1,
) -> dict[str, dict[str, str]]:
    """The environments of an asynchronous job's processes by name, the chief first."""
    names = [
        ("chief", 0),
        *(("worker", index) for index in range(workers)),
        *(("ps", index) for index in range(servers)),
    ]
    cluster: dict[str, list[str]] = {}
    for (role, _), port in zip(names, ports.allocate(len(names)), strict=True):
        cluster.setdefault(role, []).append(f"127.0.0.1:{port}")
    (common,) = environments(folder, source, trainer, strategy="ParameterServer")
    return {
        f"{role}-{index}": {
            **common,
            environment.TF_CONFIG: json.dumps(
                {"cluster": cluster, "task": {"type": role, "index": index}}
            ),
        }
        for role, index in names
    }


def evaluator_of(variables: dict[str, str]) -> dict[str, str]:
    """The environment of an evaluator for a process's job, whose file then says that it has one."""
    job = pathlib.Path(variables[environment.JOB_FILE])
    job.write_text(json.dumps({**json.loads(job.read_text()), "evaluator": True}))
    config = json.loads(variables[environment.TF_CONFIG])
    cluster = {**config["cluster"], "evaluator": [f"127.0.0.1:{ports.allocate(1)[0]}"]}
    task = {"type": "evaluator", "index": 0}
    return {**variables, environment.TF_CONFIG: json.dumps({"cluster": cluster, "task": task})}


def summary(folder: pathlib.Path) -> outputs.Summary:
    """What a finished run says of itself."""
    text = (folder / "output" / outputs.SUMMARY).read_text()
    return outputs.Summary.model_validate_json(text)


def newest(folder: pathlib.Path) -> int:
    """The step that the newest checkpoint of a run was saved after; 0 before the first."""
    checkpoints = (folder / "output" / outputs.CHECKPOINTS).glob("step-*")
    return max((int(path.name.removeprefix("step-")) for path in checkpoints), default=0)


def _base() -> dict[str, str]:
    names = ("PATH", "HOME", "LANG", "PYTHONPATH")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return {**kept, **branches.inherited(), **trainer_processes.LIMITS}
