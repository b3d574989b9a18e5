"""Faults of a rehearsal, as the options of the command line name them."""

import dataclasses
import datetime
import enum
import re
from collections.abc import Collection, Sequence

from tfparallel_operator.api import load, types

_NAME = r"[a-z]+-\d+|[a-z]+"
_STEP = r"@(?P<step>[1-9]\d{0,14})"
_AT_STEP = re.compile(rf"(?P<replica>{_NAME}){_STEP}")
_BETWEEN_AT_STEP = re.compile(rf"(?P<replica>{_NAME}):(?P<peer>{_NAME}){_STEP}")
_BY_FACTOR = re.compile(rf"(?P<replica>{_NAME})x(?P<factor>\d+(\.\d+)?)")


class FaultKind(enum.StrEnum):
    """What happens to processes of the trainer."""

    KILL = "kill"
    """The process of a replica dies at once (SIGKILL)."""
    FREEZE = "freeze"
    """The process of a replica stops, and never continues (SIGSTOP)."""
    CUT = "cut"
    """No byte passes between the processes of two replicas, and no connection closes."""
    DISK_FULL = "disk-full"
    """The processes of all replicas can write to no file (RLIMIT_FSIZE)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """A fault, once the job has made a step."""

    kind: FaultKind
    replicas: tuple[str, ...]
    """Two of a cut; empty: all replicas have it."""
    step: int

    def __str__(self) -> str:
        """The fault as the command line names it."""
        if not self.replicas:
            return f"{self.kind} {self.step}"
        return f"{self.kind} {':'.join(self.replicas)}@{self.step}"

    def affects(self, replica: str) -> bool:
        """Whether a replica has the fault."""
        return not self.replicas or replica in self.replicas

    def ends_with(self, replica: str) -> bool:
        """Whether the fault ends when a replica restarts. A cut ends with the first restart."""
        return self.kind is FaultKind.CUT or self.affects(replica)


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

    @property
    def cuts(self) -> Sequence[Fault]:
        """The faults that cut two replicas off from each other."""
        return [fault for fault in self.faults if fault.kind is FaultKind.CUT]


def parse_scenario(
    kills: Sequence[str] = (),
    freezes: Sequence[str] = (),
    slowdowns: Sequence[str] = (),
    full_disks: Sequence[int] = (),
    cuts: Sequence[str] = (),
) -> Scenario:
    """Parse the values of --kill, --freeze, --slow, --disk-full and --cut.

    Raises:
        SpecError: a value has another form, there is none, or two contradict each other.
    """
    faults = [_parse_fault(FaultKind.KILL, text) for text in kills]
    faults += [_parse_fault(FaultKind.FREEZE, text) for text in freezes]
    faults += [Fault(FaultKind.DISK_FULL, (), step) for step in full_disks]
    faults += map(_parse_cut, cuts)
    slow = [_parse_slowdown(text) for text in slowdowns]
    if not faults and not slow:
        raise load.SpecError(
            "no fault: give --kill, --freeze, --cut, --disk-full or --slow, such as --kill"
            " worker-1@40"
        )
    for index, slowdown in enumerate(slow):
        # Throttling continues a stopped process, and faults of an agent's trainer do not reach
        # the process that is throttled.
        others = {other.replica for other in slow[index + 1 :]}
        if slowdown.replica in others or any(fault.affects(slowdown.replica) for fault in faults):
            raise load.SpecError(
                f"--{slowdown}: the replica has another fault; give each fault its own replica,"
                " or rehearse twice"
            )
    return Scenario(sorted(faults, key=lambda fault: fault.step), slow)


def check_replicas(scenario: Scenario, replicas: Collection[str]) -> None:
    """Raise SpecError if a fault is that of a replica that the job does not have."""
    for cut in scenario.cuts:
        _check_cut(cut, replicas)
    disturbances = [(fault, fault.replicas) for fault in scenario.faults]
    slowdowns = [(slowdown, (slowdown.replica,)) for slowdown in scenario.slowdowns]
    for disturbance, disturbed in (*disturbances, *slowdowns):
        for replica in disturbed:
            if replica not in replicas:
                raise load.SpecError(
                    f"--{disturbance}: the job has no replica {replica!r}: it has"
                    f" {', '.join(sorted(replicas))}"
                )


def _check_cut(cut: Fault, replicas: Collection[str]) -> None:
    if len(replicas) == 1:
        raise load.SpecError(
            f"--{cut}: the job has one replica, {next(iter(replicas))}; leave out --cut, or give"
            " the job more, such as --set spec.tfReplicaSpecs.Worker.replicas=2"
        )
    for replica in cut.replicas:
        if replica.startswith(types.Role.EVALUATOR.task_type) and replica in replicas:
            raise load.SpecError(
                f"--{cut}: {replica} has no connection to others, because it reads checkpoints;"
                " name two replicas that train"
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
    return Fault(kind, (_name_replica(match["replica"]),), int(match["step"]))


def _parse_cut(text: str) -> Fault:
    match = _BETWEEN_AT_STEP.fullmatch(text)
    if match is None:
        raise load.SpecError(
            f"--cut {text}: write REPLICA:REPLICA@STEP, such as worker-0:worker-1@40"
        )
    replicas = _name_replica(match["replica"]), _name_replica(match["peer"])
    if len(set(replicas)) == 1:
        raise load.SpecError(f"--cut {text}: names {replicas[0]} twice; name two replicas")
    return Fault(FaultKind.CUT, replicas, int(match["step"]))


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
