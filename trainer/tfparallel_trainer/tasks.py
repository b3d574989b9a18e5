"""The processes of a job as TF_CONFIG describes them. Pure: nothing is started here."""

import dataclasses
import json
from typing import Any

from tfparallel_trainer import errors

SERVER = "ps"
"""TensorFlow's name for parameter servers."""

EVALUATOR = "evaluator"
"""TensorFlow's name for the process that evaluates while others train."""

_ORDER = ("chief", "worker", SERVER)
"""Roles whose tasks compute together, in the order of TensorFlow's own ranks."""

_FORMAT = '{"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": 0}}'


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """One process."""

    role: str
    index: int
    address: str
    """host:port"""

    @property
    def name(self) -> str:
        """As people write it, such as worker-1."""
        return f"{self.role}-{self.index}"


@dataclasses.dataclass(frozen=True, slots=True)
class Cluster:
    """The processes that compute together, and which of them this one is."""

    tasks: tuple[Task, ...]
    me: int
    """Position of this process in `tasks`."""

    @property
    def task(self) -> Task:
        """This process."""
        return self.tasks[self.me]

    @property
    def peers(self) -> tuple[Task, ...]:
        """All processes but this one."""
        return self.tasks[: self.me] + self.tasks[self.me + 1 :]

    def with_role(self, *roles: str) -> tuple[Task, ...]:
        """The processes of these roles."""
        return tuple(task for task in self.tasks if task.role in roles)

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files and reports: the chief, or worker 0 without one."""
        return self.me == 0 and self.task.role != EVALUATOR

    @property
    def alone(self) -> bool:
        """Whether there is no other process."""
        return len(self.tasks) == 1

    def addresses(self) -> dict[str, list[str]]:
        """The addresses by role, as TensorFlow's ClusterSpec takes them."""
        roles: dict[str, list[str]] = {}
        for task in self.tasks:
            roles.setdefault(task.role, []).append(task.address)
        return roles


def parse(text: str | None) -> Cluster:
    """Read TF_CONFIG, or raise BadConfigurationError; without a cluster it is one process.

    An evaluator computes with nobody, so it is a cluster of its own.
    """
    try:
        config = json.loads(text or "{}")
        roles = dict(config.get("cluster") or {})
        if not roles:
            return Cluster((Task("worker", 0, "localhost:0"),), 0)
        role, index = str(config["task"]["type"]), int(config["task"]["index"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise errors.BadConfigurationError(
            f"TF_CONFIG is {text!r}: write it as {_FORMAT}."
        ) from error
    _check_roles(roles)
    if role == EVALUATOR:
        # Nobody connects to it, so its address may be missing.
        address = dict(_numbered(roles.get(role))).get(index, "localhost:0")
        return Cluster((Task(role, index, str(address)),), 0)
    tasks = tuple(
        Task(kind, number, str(address))
        for kind in _ORDER
        for number, address in _numbered(roles.get(kind))
    )
    for position, task in enumerate(tasks):
        if (task.role, task.index) == (role, index):
            return Cluster(tasks, position)
    names = ", ".join(task.name for task in tasks)
    raise errors.BadConfigurationError(
        f"TF_CONFIG says that this is {role}-{index}, but its cluster has {names}: "
        "make task.type and task.index name one of them."
    )


def _numbered(addresses: Any) -> list[tuple[int, Any]]:
    """Addresses with indices: a list, or a sparse {"1": address} where workers come and go."""
    try:
        if isinstance(addresses, dict):
            return sorted((int(index), address) for index, address in addresses.items())
        return list(enumerate(addresses or ()))
    except (TypeError, ValueError) as error:
        raise errors.BadConfigurationError(
            f"TF_CONFIG has the addresses {addresses!r}: write it as {_FORMAT}."
        ) from error


def _check_roles(roles: dict[str, Any]) -> None:
    unknown = sorted(set(roles) - {*_ORDER, EVALUATOR})
    if unknown:
        raise errors.BadConfigurationError(
            f"TF_CONFIG has the role {unknown[0]}, which the trainer does not use: "
            f"give {', '.join(_ORDER)} only."
        )
    if len(roles.get("chief") or ()) > 1:
        raise errors.BadConfigurationError(
            f"TF_CONFIG has {len(roles['chief'])} chiefs: give at most one."
        )
