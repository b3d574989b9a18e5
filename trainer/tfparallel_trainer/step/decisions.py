"""What one process decides, made true on all: a message to the others, and changed variables.

Callbacks run on the process of the first replica alone. What they say, and what they change in its
model or optimizer, reaches all other replicas before anything else happens.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer.mesh import collectives
from tfparallel_trainer.step import replica, state


class Decisions:
    """Between all replicas of a mesh; every process makes the same calls in the same order."""

    def __init__(self, replicas: Sequence[replica.Replica]) -> None:
        self._replicas = replicas
        self._share = state.Sharing(replicas)
        self._traced: Any = None

    @property
    def lonely(self) -> bool:
        """Whether there is one replica only."""
        return self._replicas[0].data.size == 1

    @property
    def leads(self) -> bool:
        """Whether this process has the first replica."""
        return self._replicas[0].data.index == 0

    def after(self, call: Callable[[], bytes]) -> bytes:
        """Let the leading process make a call; all get what it gives and what it changes.

        The call may change variables of the first replica; the others then get all its state.
        """
        if self.lonely:
            return call()
        if not self.leads:
            told = self._tell(b"")
        else:
            before = _values(self._replicas[0])
            answer = call()
            changed = _differ(before, _values(self._replicas[0]))
            told = self._tell(bytes([changed]) + answer)
        if told[0]:
            self._share()
        return told[1:]

    def _tell(self, content: bytes) -> bytes:
        """Give what the leading process gives to all."""
        if self._traced is None:
            self._traced = tf.function(
                self._run, autograph=False, input_signature=[tf.TensorSpec((None,), tf.int32)]
            )
        numbers = np.frombuffer(content, np.uint8).astype(np.int32)
        return bytes(self._traced(tf.constant(numbers)).numpy().astype(np.uint8))

    def _run(self, content: tf.Tensor) -> tf.Tensor:
        outcomes = []
        for own in self._replicas:
            with tf.device(own.device):
                own.data.begin(collectives.Program.TELL)
                given = content if own.data.index == 0 else content[:0]
                outcomes.append(own.data.gather_rows([given])[0])
        return outcomes[0]


def _values(own: replica.Replica) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(variable) for variable in own.state()]


def _differ(before: Sequence[tf.Tensor], after: Sequence[tf.Tensor]) -> bool:
    return any(
        one.dtype != tf.string and not bool(tf.reduce_all(tf.equal(one, other)))
        for one, other in zip(before, after, strict=True)
    )
