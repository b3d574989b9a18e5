"""Faults of a rehearsal, as the options of the command line name them."""

import dataclasses
import datetime
import enum
import re
from collections.abc import Collection, Sequence

from tfparallel_operator.api import load

_AT_STEP = re.compile(r"(?P<replica>[a-z]+-\d+|[a-z]+)@(?P<step>[1-9]\d{0,14})")
_BY_FACTOR = re.compile(r"(?P<replica>[a-z]+-\d+|[a-z]+)x(?P<factor>\d+(\.\d+)?)")


class FaultKind(enum.StrEnum):
    """What happens to processes of the trainer."""

    KILL = "kill"
    """The process of a replica dies at once (SIGKILL)."""
    FREEZE = "freeze"
    """The process of a replica stops, and never continues (SIGSTOP)."""
    DISK_FULL = "disk-full"
    """The processes of all replicas can write to no file (RLIMIT_FSIZE)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """A fault, once the job has made a step."""

    kind: FaultKind
    replica: str | None
    """None: all replicas have it."""
    step: int

    def __str__(self) -> str:
        """The fault as the command line names it."""
        if self.replica is None:
            return f"{self.kind} {self.step}"
        return f"{self.kind} {self.replica}@{self.step}"


@dataclasses.dataclass(frozen=True, slots=True)
class Injection:
    """A fault that has happened."""

    fault: Fault
    time: datetime.datetime
    step: int
    """The last step that was on record."""


@dataclasses.dataclass(frozen=True, slots=True)
class Slowdown:
    """A replica that is slower from its start to its end."""

    replica: str
    factor: float
    """How many times slower."""

    def __str__(self) -> str:
        """The slowdown as the command line names it."""
        return f"slow {self.replica}x{self.factor:g}"


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """All that happens in the disturbed run."""

    faults: Sequence[Fault] = ()
    """In the order of their steps."""
    slowdowns: Sequence[Slowdown] = ()


def parse_scenario(
    kills: Sequence[str] = (),
    freezes: Sequence[str] = (),
    slowdowns: Sequence[str] = (),
    full_disks: Sequence[int] = (),
) -> Scenario:
    """Parse the values of --kill, --freeze, --slow and --disk-full.

    Raises:
        SpecError: a value has another form, there is none, or two contradict each other.
    """
    faults = [_parse_fault(FaultKind.KILL, text) for text in kills]
    faults += [_parse_fault(FaultKind.FREEZE, text) for text in freezes]
    faults += [Fault(FaultKind.DISK_FULL, None, step) for step in full_disks]
    slow = [_parse_slowdown(text) for text in slowdowns]
    if not faults and not slow:
        raise load.SpecError(
            "no fault: give --kill, --freeze, --disk-full or --slow, such as --kill worker-1@40"
        )
    for index, slowdown in enumerate(slow):
        # Throttling continues a stopped process, and faults of an agent's trainer do not reach
        # the process that is throttled.
        others = {fault.replica for fault in faults}
        others |= {other.replica for other in slow[index + 1 :]}
        if others & {slowdown.replica, None}:
            raise load.SpecError(
                f"--{slowdown}: the replica has another fault; give each fault its own replica,"
                " or rehearse twice"
            )
    return Scenario(sorted(faults, key=lambda fault: fault.step), slow)


def check_replicas(scenario: Scenario, replicas: Collection[str]) -> None:
    """Raise SpecError if a fault is that of a replica that the job does not have."""
    disturbances: Sequence[Fault | Slowdown] = (*scenario.faults, *scenario.slowdowns)
    for disturbance in disturbances:
        if disturbance.replica not in {*replicas, None}:
            raise load.SpecError(
                f"--{disturbance}: the job has no replica {disturbance.replica!r}: it has"
                f" {', '.join(sorted(replicas))}"
            )


def check_steps(scenario: Scenario, steps: int) -> None:
    """Raise SpecError if the job ends before the step of a fault."""
    for fault in scenario.faults:
        if fault.step >= steps:
            raise load.SpecError(
                f"--{fault}: the job ends with step {steps}; give an earlier step, or more steps"
                " with --set spec.trainer.steps"
            )


def _parse_fault(kind: FaultKind, text: str) -> Fault:
    match = _AT_STEP.fullmatch(text)
    if match is None:
        raise load.SpecError(f"--{kind} {text}: write REPLICA@STEP, such as worker-1@40")
    return Fault(kind, _name_replica(match["replica"]), int(match["step"]))


def _parse_slowdown(text: str) -> Slowdown:
    match = _BY_FACTOR.fullmatch(text)
    if match is None or float(match["factor"]) <= 1:
        raise load.SpecError(
            f"--slow {text}: write REPLICAxFACTOR with a factor above 1, such as worker-1x5"
        )
    return Slowdown(_name_replica(match["replica"]), float(match["factor"]))


def _name_replica(name: str) -> str:
    """Return the name of a replica; that of a role, such as chief, means its first replica."""
    return name if "-" in name else f"{name}-0"
