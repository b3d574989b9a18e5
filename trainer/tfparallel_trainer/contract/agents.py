"""The agent protocol: what a container's first process asks after its trainer has ended.

The agent asks again and again until the answer is no longer to wait. It names the run that has
ended, so that a late question about an earlier run, or a question that is sent twice, does no harm.
"""

import enum
from typing import Annotated

import pydantic

from tfparallel_trainer.contract import base

MAX_MESSAGE_LETTERS = 4096
"""Of a termination message, as in Kubernetes."""

_Number = Annotated[int, pydantic.Field(ge=0, le=10**9)]


class Run(base.Model):
    """One run of the trainer in a container."""

    attempt: _Number
    """The job's attempt, from 1."""

    replica_attempt: _Number
    """The replica's restarts within that attempt."""

    def precedes(self, other: "Run") -> bool:
        """Whether this run of a replica comes before another one."""
        return (self.attempt, self.replica_attempt) < (other.attempt, other.replica_attempt)


class RunEnd(base.Model):
    """What an agent POSTs while it waits: how its trainer has ended."""

    run: Run
    """The run that has ended."""

    code: Annotated[int, pydantic.Field(ge=0, le=255)]
    """The exit code; 128 + n if signal n ended the trainer."""

    message: Annotated[str, pydantic.Field(max_length=MAX_MESSAGE_LETTERS)] = ""
    """The sentence of the error, if the trainer left one."""

    interrupted: bool = False
    """Whether the agent was asked to end this run, and to stay."""


class Instruction(enum.StrEnum):
    """What an agent does next."""

    WAIT = "Wait"
    """Ask again."""
    RUN = "Run"
    """Fork a trainer for another run."""
    EXIT = "Exit"
    """Exit with the trainer's code."""


class AgentResponse(base.Model):
    """The answer to an agent."""

    instruction: Instruction

    run: Run | None = None
    """The run to begin, with instruction Run."""

    seconds: Annotated[float, pydantic.Field(gt=0, le=60)] = 1.0
    """When to ask again, with instruction Wait."""

    @pydantic.model_validator(mode="after")
    def _names_a_run(self) -> "AgentResponse":
        if (self.instruction is Instruction.RUN) != (self.run is not None):
            raise ValueError("instruction Run, and no other one, has a run")
        return self
