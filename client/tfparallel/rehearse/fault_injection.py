"""Injects faults into a job that runs on this machine, when it has made the steps."""

import asyncio
import contextlib
import json
import os
import pathlib
import resource
import signal
from collections.abc import Collection, Mapping, Sequence

from tfparallel.backends.local import cluster
from tfparallel.rehearse import faults
from tfparallel_operator import wall_clock
from tfparallel_trainer.contract import outputs

_POLL_SECONDS = 0.01

CAN_LIMIT_FILES = hasattr(resource, "prlimit")
"""Whether this system lets a process limit the files of another process: Linux does."""


class Injector:
    """A `local_run.Companion` that injects faults in their order."""

    def __init__(self, planned: Sequence[faults.Fault]) -> None:
        self._planned = list(planned)
        self._killed: set[int] = set()
        self.injections: list[faults.Injection] = []

    async def run(self, local: cluster.LocalCluster, results: pathlib.Path | None) -> None:
        """Watch the step log until all faults have happened."""
        if results is None:
            raise ValueError("a job of the shipped trainer has a folder of results")
        tail = _StepLogTail(results / outputs.STEP_LOG)
        while self._planned:
            await asyncio.sleep(_POLL_SECONDS)
            step = tail.read_last_step()
            while self._planned and self._planned[0].step <= step:
                if not self._inject(self._planned[0], step, local.trainer_ids()):
                    break
                del self._planned[0]

    def _inject(self, fault: faults.Fault, step: int, trainer_ids: Mapping[str, int]) -> bool:
        """Inject a fault; False: its replica restarts, and meets the fault when it trains again."""
        targets = {
            number
            for replica, number in trainer_ids.items()
            if fault.replica in (replica, None) and number not in self._killed
        }
        # Before the fault: what follows from it must not seem to be earlier.
        time = wall_clock.utc_now()
        if not targets or not _disturb(fault.kind, targets):
            return False
        if fault.kind is faults.FaultKind.KILL:
            self._killed |= targets
        self.injections.append(faults.Injection(fault, time, step))
        return True


def _disturb(kind: faults.FaultKind, process_ids: Collection[int]) -> bool:
    """Disturb processes; return whether all of them were there."""
    with contextlib.suppress(ProcessLookupError):
        for number in process_ids:
            match kind:
                case faults.FaultKind.KILL:
                    os.kill(number, signal.SIGKILL)
                case faults.FaultKind.FREEZE:
                    os.kill(number, signal.SIGSTOP)
                case faults.FaultKind.DISK_FULL:
                    resource.prlimit(number, resource.RLIMIT_FSIZE, (0, 0))
        return True
    return False


class _StepLogTail:
    """Reads what a step log gains."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._offset = 0
        self._step = 0

    def read_last_step(self) -> int:
        """Return the number of the last step; 0: no step has ended."""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as log:
            log.seek(self._offset)
            whole, end, _ = log.read().rpartition(b"\n")
            self._offset += len(whole) + len(end)
            for line in whole.splitlines():
                self._step = json.loads(line).get("step", self._step)
        return self._step
