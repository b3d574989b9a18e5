"""Trainings as processes of this machine: the fixture `runs`."""

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import signal
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any
from unittest import mock

from testing import paths
from testing.trainer import launch, trainer_processes, weights
from tfparallel_trainer import __main__ as trainer_entry
from tfparallel_trainer.contract import environment, exits, outputs

NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """A training whose processes have all ended."""

    folder: pathlib.Path
    ended: list[launch.Ended]

    @property
    def codes(self) -> list[int | None]:
        """The exit codes, the chief's first."""
        return [process.code for process in self.ended]

    @property
    def chief(self) -> launch.Ended:
        """How its chief ended."""
        return self.ended[0]

    @property
    def output(self) -> pathlib.Path:
        """Its output folder."""
        return self.folder / "output"

    @property
    def summary(self) -> outputs.Summary:
        """Its last report of itself."""
        return launch.summary(self.folder)

    def checkpoint(self, step: int | None = None) -> dict[str, Any]:
        """Read the variables of a checkpoint, the newest by default."""
        return weights.checkpoint(self.output, step)

    def difference(self, expected: Sequence[Any]) -> float:
        """Return the largest difference of a weight from the expected ones."""
        return weights.difference(weights.of_model(self.checkpoint()), expected)

    def losses(self) -> list[float]:
        """Return the loss of each step; the run needs `step_log=True`."""
        return step_losses(self.folder)


@dataclasses.dataclass(frozen=True, slots=True)
class Runs:
    """Starts trainings in a test's folder, each in a subfolder that is its claim too."""

    folder: pathlib.Path

    def environments(
        self,
        module: str = "model.py",
        *,
        folder: str = ".",
        source: pathlib.Path = paths.TRAINER_MODELS,
        processes: int = 1,
        devices: int = 1,
        strategy: str = "MultiWorkerMirrored",
        mesh: dict[str, object] | None = None,
        attempt: int = 1,
        step_log: bool = False,
        variables: Mapping[str, str] = NO_VARIABLES,
        **trainer: object,
    ) -> list[dict[str, str]]:
        """Return the environments of a job's processes; `trainer` are fields of spec.trainer."""
        more = {**variables, environment.ATTEMPT: str(attempt)}
        if step_log:
            more[environment.STEP_LOG] = "1"
        return launch.environments(
            self.folder / folder,
            source,
            {"module": module, **trainer},
            processes=processes,
            devices=devices,
            strategy=strategy,
            mesh=mesh,
            more=more,
        )

    def group(
        self,
        environments: Sequence[dict[str, str]],
        arguments: Sequence[str] = launch.TRAINER,
        *,
        logs: str = "logs",
        new: bool = False,
    ) -> launch.Group:
        """Start processes with these environments, as new Pythons if `new`, else forked."""
        start = trainer_processes.new if new else trainer_processes.forked
        return launch.Group(self.folder / logs, list(environments), arguments, start)

    def start(
        self, module: str, *, folder: str = ".", new: bool = False, **job: Any
    ) -> launch.Group:
        """Start a job's processes; `job` as `environments` takes it."""
        environments = self.environments(module, folder=folder, **job)
        return self.group(environments, logs=f"{folder}/logs", new=new)

    def end(
        self, module: str, *, folder: str = ".", new: bool = False, limit: float = 150.0, **job: Any
    ) -> Run:
        """Run a job until all its processes have ended, however they do."""
        with self.start(module, folder=folder, new=new, **job) as group:
            return Run(self.folder / folder, group.wait(limit))

    def finish(self, module: str, *, folder: str = ".", **job: Any) -> Run:
        """Run a job to success."""
        run = self.end(module, folder=folder, **job)
        assert run.codes == [exits.Exit.DONE] * len(run.ended), run.ended
        return run

    def server_environments(
        self,
        module: str = "model.py",
        *,
        folder: str = ".",
        source: pathlib.Path = paths.TRAINER_MODELS,
        workers: int = 2,
        servers: int = 1,
        **trainer: object,
    ) -> dict[str, dict[str, str]]:
        """Return the environments of a job with parameter servers by name, the chief's first."""
        return launch.with_servers(
            self.folder / folder,
            source,
            {"module": module, **trainer},
            workers=workers,
            servers=servers,
        )

    def finish_servers(
        self, module: str = "model.py", *, folder: str = ".", new: bool = False, **job: Any
    ) -> Run:
        """Run a job with parameter servers to success; `job` as `server_environments` takes it."""
        environments = self.server_environments(module, folder=folder, **job)
        with self.group(list(environments.values()), logs=f"{folder}/logs", new=new) as group:
            return Run(self.folder / folder, group.finish())


def step_losses(folder: pathlib.Path) -> list[float]:
    """Return the loss of each step that a run in a folder has logged."""
    lines = (folder / "output" / outputs.STEP_LOG).read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [record["loss"] for record in records if record["event"] == outputs.StepEvent.STEP]


def attempt(variables: Mapping[str, str]) -> launch.Ended:
    """Make an attempt in this process, which has to be refused before TensorFlow starts."""
    output, errors = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with (
            mock.patch.dict(os.environ, variables),
            mock.patch.object(sys, "path", [*sys.path]),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(errors),
        ):
            code = trainer_entry.attempt(os.environ, 0.0)
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return launch.Ended(code, output.getvalue(), errors.getvalue())
