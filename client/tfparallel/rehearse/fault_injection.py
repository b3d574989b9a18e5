"""Injects faults into a job that runs on this machine, when it has made the steps."""

import asyncio
import contextlib
import json
import os
import pathlib
import resource
import signal
from collections.abc import Collection, Mapping

from tfparallel.backends.local import cluster
from tfparallel.rehearse import faults, relays, tcp_sockets
from tfparallel_operator import wall_clock
from tfparallel_trainer.contract import outputs

_POLL_SECONDS = 0.01

_CAN_LIMIT_FILES = hasattr(resource, "prlimit")
"""Whether this system lets a process limit the files of another process: Linux does."""


def can_inject(kind: faults.FaultKind) -> bool:
    """Whether this system has what a fault needs."""
    match kind:
        case faults.FaultKind.DISK_FULL:
            return _CAN_LIMIT_FILES
        case faults.FaultKind.CUT:
            return tcp_sockets.CAN_LIST
        case _:
            return True


class Injector:
    """Its `run` is a `local_run.Companion` that injects faults in their order."""

    def __init__(self, scenario: faults.Scenario) -> None:
        self._planned = list(scenario.faults)
        cut_off = {replica for cut in scenario.cuts for replica in cut.replicas}
        self.network = relays.RelayNetwork(cut_off)
        self._killed: set[int] = set()
        self.injections: list[faults.Injection] = []

    async def run(self, local: cluster.LocalCluster, results: pathlib.Path | None) -> None:
        """Relay what a cut can concern, and watch the step log until all faults have happened."""
        if results is None:
            raise ValueError("a job of the shipped trainer has a folder of results")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.network.run(local.trainer_ids))
            await self._inject_all(local, results)

    async def _inject_all(self, local: cluster.LocalCluster, results: pathlib.Path) -> None:
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
            replica: number
            for replica, number in trainer_ids.items()
            if fault.affects(replica) and number not in self._killed
        }
        # Before the fault: what follows from it must not seem to be earlier.
        time = wall_clock.utc_now()
        if len(targets) < max(1, len(fault.replicas)):
            return False
        if fault.kind is faults.FaultKind.CUT:
            self.network.cut(fault.replicas, trainer_ids)
        elif not _disturb(fault.kind, targets.values()):
            return False
        if fault.kind is faults.FaultKind.KILL:
            self._killed.update(targets.values())
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
