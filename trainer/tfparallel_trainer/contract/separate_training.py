"""Replicas of a script that train apart from each other: what one of them saw of it."""

import enum
from typing import Annotated

import pydantic

from tfparallel_trainer.contract import base, limits


class OnSeparateTraining(enum.StrEnum):
    """What a script whose replicas train models of their own leads to."""

    STOP = "Stop"
    """The replica ends with exit code 65 before its first step."""
    CONTINUE = "Continue"
    """Training continues; the log and the status say so."""


class SeparateTraining(base.Model):
    """What a replica saw at its first step that trains a model of its own."""

    replica: limits.Name
    """The replica, such as worker-0."""

    peers: Annotated[limits.Parts, pydantic.Field(ge=1)]
    """How many other replicas that train TF_CONFIG names."""

    method: limits.Name = ""
    """The method of Keras that trains, such as fit. Empty: a loop of the script with an
    optimizer."""

    place: limits.PlaceText
    """The line of the script that trains: train.py, line 12."""

    @property
    def cause(self) -> str:
        """Say for people what is wrong, without a period."""
        peers = "1 peer" if self.peers == 1 else f"{self.peers} peers"
        alone = f"Keras' {self.method}" if self.method else "its optimizer"
        return (
            f"{self.replica} trains a model of its own ({self.place}): TF_CONFIG gives it {peers},"
            f" and {alone} shares nothing with them"
        )

    def describe_remedy(self, call: str = "") -> str:
        """Say what to change, without a period.

        Args:
            call: of tfparallel_trainer.fit, as it is to stand at the place; empty: unknown.
        """
        if self.method == "fit":
            change = f"write {call!r} there" if call else "call tfparallel_trainer.fit there"
            return f"Call tfparallel_trainer.start() right after the imports, and {change}"
        return (
            "Train with tfparallel_trainer.fit, or run the step by the strategy.run of a"
            " MultiWorkerMirroredStrategy"
        )
