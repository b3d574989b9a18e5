"""Draws what is killed in a run, kills it, and sees that attempts do not overlap."""

import asyncio
import contextlib
import enum
import os
import pathlib
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

MAX_KILLS = 3
_POLL_SECONDS = 0.01
_SHORTEST_SECONDS = 0.3
"""How long a trainer lives at least. A program that an agent starts looks like it for a moment."""


class Victim(enum.StrEnum):
    """What is killed of a replica."""

    TRAINER = "trainer"
    AGENT = "agent"
    """The container's first process, which is the trainer's parent."""
    POD = "pod"


ON_PROCESSES = (Victim.TRAINER, Victim.AGENT)


class Kill(NamedTuple):
    """A process of a replica dies, or its pod."""

    delay: float
    """Seconds after the begin of the run, or after the kill before."""
    replica: float
    """Which training replica is hit: its place in their sorted list, as a fraction in [0, 1)."""
    victim: Victim


def draw(seed: int, seconds: float, victims: Sequence[Victim] = ON_PROCESSES) -> Sequence[Kill]:
    """Draw the kills of a run.

    Args:
        seed: what they follow from.
        seconds: how long an undisturbed run takes.
        victims: what may be killed.
    """
    source_of_chance = random.Random(seed)  # noqa: S311 (no secret)
    return [
        Kill(
            source_of_chance.uniform(0, seconds),
            source_of_chance.random(),
            source_of_chance.choice(victims),
        )
        for _ in range(source_of_chance.randint(1, MAX_KILLS))
    ]


class _Sight(NamedTuple):
    """A process that was seen for the first time."""

    moment: float
    survivors: frozenset[int]
    """Processes of an earlier attempt that lived then."""


class HasTrainers(Protocol):
    """A cluster, as far as a killer knows it."""

    def trainer_ids(self) -> Mapping[str, int]:
        """Return the process ids of the trainers that run now, by their replicas."""


class Killer:
    """Kills processes and pods while a job runs, and sees that attempts do not overlap."""

    def __init__(
        self, kills: Sequence[Kill], delete_pod: Callable[[str], object] | None = None
    ) -> None:
        """Begin with all kills to come.

        Args:
            kills: what to kill.
            delete_pod: deletes the pod of a replica by force. None: there are no pods.
        """
        self._kills = list(kills)
        self._delete_pod = delete_pod
        self.trainer_ids: set[int] = set()
        """Process ids of trainers."""
        self._sights: dict[int, _Sight] = {}
        self._survivors: set[int] = set()
        """Processes that lived when another one was killed: they belong to an earlier attempt."""
        self.killed = 0
        self.overlap = ""
        """Which processes began while some of an earlier attempt still lived; empty: none did."""

    async def run(self, cluster: HasTrainers, _: pathlib.Path | None = None) -> None:
        """Look at the processes until the run ends."""
        begun = time.monotonic()
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            ids = self._find_trainers(cluster)
            if self._kills and ids and time.monotonic() > begun + self._kills[0].delay:
                await self._kill(self._kills.pop(0), ids)
                begun = time.monotonic()

    def _find_trainers(self, cluster: HasTrainers) -> Mapping[str, int]:
        """Return the trainers that run, and note those that began beside survivors."""
        ids = {
            replica: number
            for replica, number in cluster.trainer_ids().items()
            if is_trainer(number)
        }
        now = time.monotonic()
        self._survivors &= set(ids.values())
        for number in ids.values():
            if number not in self._sights:
                self._sights[number] = _Sight(now, frozenset(self._survivors))
        stable = {
            replica: number
            for replica, number in ids.items()
            if now > self._sights[number].moment + _SHORTEST_SECONDS
        }
        for replica, number in stable.items():
            if number not in self.trainer_ids and self._sights[number].survivors:
                self.overlap = f"{replica} ({number}) began beside {self._sights[number].survivors}"
        self.trainer_ids.update(stable.values())
        return stable

    async def _kill(self, kill: Kill, ids: Mapping[str, int]) -> None:
        replica = sorted(ids)[int(kill.replica * len(ids))]
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            if kill.victim is Victim.POD:
                if self._delete_pod is None:
                    raise ValueError("a process is no pod")
                await asyncio.to_thread(self._delete_pod, replica)
            else:
                _kill_process(ids[replica], kill.victim)
            self.killed += 1
            self._survivors |= set(ids.values()) - {ids[replica]}


def _kill_process(trainer: int, victim: Victim) -> None:
    number = trainer
    if victim is Victim.AGENT:
        parent = parent_of(trainer)
        number = trainer if parent == os.getpid() else parent
    os.kill(number, signal.SIGKILL)


def parent_of(process_id: int) -> int:
    """Return the id of a process's parent."""
    status = pathlib.Path(f"/proc/{process_id}/stat").read_text(encoding="ascii")
    return int(status.rpartition(")")[2].split()[1])


def is_trainer(process_id: int) -> bool:
    """Whether a process is a trainer or its agent: both have other children for a while.

    Those run other programs, or files of the package.
    """
    with contextlib.suppress(OSError):
        command = pathlib.Path(f"/proc/{process_id}/cmdline").read_bytes()
        return b"tfparallel_trainer" in command.split(b"\0")
    return False
