"""What one process decides, made true on all: a message to the others, and changed variables.

Callbacks run on the process of the first replica alone. What they say, and what they change in its
model or optimizer, reaches all other replicas before anything else happens.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer.comms import collectives
from tfparallel_trainer.objective import replica, state


class Decisions:
    """Between all replicas of a mesh; every process makes the same calls in the same order."""

    def __init__(self, replicas: Sequence[replica.Replica]) -> None:
        self._replicas = replicas
        self._answer = b""
        self._sharings: dict[tuple[int, ...], state.Sharing] = {}
        self._snapshot = tf.function(self._read, autograph=False)
        self._announced = tf.function(self._announce, autograph=False)
        self._tell_all = tf.function(
            self._tell, autograph=False, input_signature=[tf.TensorSpec((None,), tf.int32)]
        )

    @property
    def is_alone(self) -> bool:
        """Whether there is one replica only."""
        return self._replicas[0].data.size == 1

    @property
    def leads(self) -> bool:
        """Whether this process has the first replica."""
        return self._replicas[0].data.index == 0

    def after(self, call: Callable[[], bytes]) -> bytes:
        """Let the leading process make a call; all get what it gives and what it changes.

        The call may change variables of the first replica, which the others then get. Where it
        changes none, and gives what the last one gave, all learn so by one small sum.
        """
        if self.is_alone:
            return call()
        answer, before = self._answer, None
        if self.leads:
            before = self._snapshot()
            answer = call()
        announced = self._announced(before, tf.constant(answer != self._answer)).numpy()
        is_new, *changed = announced > 0
        if is_new:
            numbers = np.frombuffer(answer, np.uint8).astype(np.int32)
            self._answer = bytes(self._tell_all(tf.constant(numbers)).numpy().astype(np.uint8))
        if any(changed):
            self._share(tuple(place for place, differs in enumerate(changed) if differs))
        return self._answer

    def _read(self) -> Any:
        """The values of the first replica, not copied; Python takes long over hundreds of them."""
        replica = self._replicas[0]
        with tf.device(replica.device):
            return tf.experimental.Optional.from_value(_values(replica))

    def _announce(self, before: Any, is_new: tf.Tensor) -> tf.Tensor:
        """Whether there is an answer, and of each variable whether it has changed: above 0."""
        outcomes = []
        for local_replica in self._replicas:
            with tf.device(local_replica.device):
                local_replica.data.begin(collectives.Program.ANNOUNCE)
                if local_replica.data.index == 0:
                    pairs = zip(before.get_value(), _values(local_replica), strict=True)
                    differ = [tf.reduce_any(tf.not_equal(one, other)) for one, other in pairs]
                    announced = tf.cast(tf.stack([is_new, *differ]), tf.float32)
                else:
                    announced = tf.zeros((1 + len(_carried(local_replica)),))
                outcomes.append(local_replica.data.sum(announced))
        return outcomes[0]

    def _tell(self, content: tf.Tensor) -> tf.Tensor:
        """Give what the leading process gives to all."""
        outcomes = []
        for local_replica in self._replicas:
            with tf.device(local_replica.device):
                local_replica.data.begin(collectives.Program.TELL)
                message = content if local_replica.data.index == 0 else content[:0]
                outcomes.append(local_replica.data.gather_rows([message])[0])
        return outcomes[0]

    def _share(self, places: tuple[int, ...]) -> None:
        """Give all replicas the variables at these places; all of them, if too many sets were."""
        if places not in self._sharings and len(self._sharings) >= collectives.MAX_VARIANTS - 1:
            places = tuple(range(len(_carried(self._replicas[0]))))
        if places not in self._sharings:
            self._sharings[places] = state.Sharing(
                self._replicas,
                part=lambda replica: [_carried(replica)[place] for place in places],
                variant=len(self._sharings),
            )
        self._sharings[places]()


def _carried(replica: replica.Replica) -> list[Any]:
    """The variables that replicas share."""
    return [variable for variable in replica.state() if variable.dtype != "string"]


def _values(replica: replica.Replica) -> tuple[tf.Tensor, ...]:
    return tuple(tf.convert_to_tensor(variable) for variable in _carried(replica))
