"""What callbacks see as the model, and how their decisions reach all replicas.

Callbacks run on the process of the first replica alone. What they say, and what they change in its
model or optimizer, reaches all other replicas before anything else happens. TensorFlow reports the
operations that a callback runs, so one that only reads costs no look at the variables.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.comms import collectives
from tfparallel_trainer.objective import evaluate, state, tracing, writes
from tfparallel_trainer.objective.replica import Replica


class ModelAccess(Protocol):
    """Between all processes of a run; each makes the same calls in the same order."""

    @property
    def leads(self) -> bool:
        """Whether callbacks run in this process."""

    @property
    def changes(self) -> int:
        """How often callbacks have changed variables of several replicas."""

    @property
    def model(self) -> Any:
        """The Keras model that has `stop_training` and the history."""

    def shown_to(self, callback: Any) -> Any:
        """The object that a callback gets as its model."""

    def after(self, call: Callable[[], bytes]) -> bytes:
        """Make a call on the leading process. All processes get its result and its changes."""

    def finish(self, *, trained: bool) -> None:
        """Set the weights as Keras' fit leaves them, if an epoch has ended."""

    def dump_closures(self) -> Mapping[str, Any]:
        """The variables outside the model that calls have written, on the leading process."""

    def restore_closures(self, values: Mapping[str, Any]) -> None:
        """Give them the values that `dump_closures` gave, within a call on that process."""


class ReplicatedModelAccess:
    """Over replicas that each have the whole model."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        """Take the replicas of this process."""
        self._replicas = replicas
        self._share_statistics = state.sharing_statistics(replicas)
        self._is_local = len(replicas) == replicas[0].data.size
        self._answer = b""
        self.changes = 0
        self._sharings: dict[tuple[int, ...], Callable[[], Any]] = {}
        variables, self._closures = replicas[0].state(), replicas[0].closures
        self._count = len(variables)
        self._watch = writes.ChangeDetector(self._closures)
        self._written: set[int] = set()
        self._places: dict[int, int] = {}
        first = len(variables) - len(self._closures) if self.is_alone else 0
        for index, variable in enumerate(variables[first:], first):
            self._places[id(variable.value.handle)] = index
        self._announced = tf.function(
            self._announce,
            autograph=False,
            input_signature=[tf.TensorSpec((1 + self._count,), tf.float32)],
        )
        self._tell_all = tf.function(
            self._broadcast, autograph=False, input_signature=[tf.TensorSpec((None,), tf.int32)]
        )

    @property
    def is_alone(self) -> bool:
        """Whether there is one replica only."""
        return self._replicas[0].data.size == 1

    @property
    def leads(self) -> bool:
        return self._replicas[0].data.index == 0

    @property
    def model(self) -> Any:
        return self._replicas[0].model

    def shown_to(self, callback: Any) -> Any:
        return self.model

    def after(self, call: Callable[[], bytes]) -> bytes:
        """One small sum tells if a variable or answer changed; none where all replicas are here."""
        if self.is_alone and not self._closures:
            return call()
        answer, changed = self._answer, frozenset[int]()
        if self.leads:
            with writes.noted(self._places) as places:
                answer = call()
            changed = self._changed(places)
        if self.is_alone or self._is_local:
            self._answer = answer
        else:
            changed = self._exchange(answer, changed)
        self._note(changed)
        if changed and not self.is_alone:
            self.changes += 1
            self._share(tuple(sorted(changed)))
        return self._answer

    def _changed(self, places: Collection[int]) -> frozenset[int]:
        """Of the places that a call may have written, those that it may have changed."""
        first = self._count - len(self._closures)
        outside = self._watch.find_changed(index - first for index in places if index >= first)
        return frozenset(
            [*(index for index in places if index < first), *(first + place for place in outside)]
        )

    def _note(self, changed: frozenset[int]) -> None:
        """Note which variables outside the model were written, on all processes alike."""
        first = self._count - len(self._closures)
        self._written |= {index - first for index in changed if index >= first}
        if excess := tracing.describe_excess(self._closures, self._written):
            raise errors.UserCodeError(excess).on_every_process()

    def dump_closures(self) -> Mapping[str, Any]:
        return tracing.dump(self._closures, sorted(self._written))

    def restore_closures(self, values: Mapping[str, Any]) -> None:
        tracing.restore(self._closures, values)

    def finish(self, *, trained: bool) -> None:
        """Let the first replica's statistics, and averages of the weights, be everyone's."""
        self._share_statistics()
        if trained:
            for replica in self._replicas:
                evaluate.adopt_averages(replica.model)

    def _exchange(self, answer: bytes, changed: frozenset[int]) -> frozenset[int]:
        """Send the leading process' answer to all, and return what it has changed."""
        news = np.zeros(1 + self._count, np.float32)
        news[[1 + index for index in changed]] = 1
        news[0] = answer != self._answer
        is_new, *differs = self._announced(tf.constant(news)).numpy() > 0
        if is_new:
            numbers = np.frombuffer(answer, np.uint8).astype(np.int32)
            self._answer = bytes(self._tell_all(tf.constant(numbers)).numpy().astype(np.uint8))
        return frozenset(np.flatnonzero(differs).tolist())

    def _announce(self, news: tf.Tensor) -> tf.Tensor:
        """Whether there is an answer, and of each variable whether it has changed: above 0."""
        program = collectives.Program.ANNOUNCE
        return state.on_each(
            self._replicas,
            program,
            lambda rank_replica: rank_replica.data.sum(rank_replica.data.only_first(news)),
        )[0]

    def _broadcast(self, content: tf.Tensor) -> tf.Tensor:
        """Return the value of the leading process on all processes."""

        def gather(rank_replica: Replica) -> tf.Tensor:
            return rank_replica.data.gather_rows(
                [content if rank_replica.data.index == 0 else content[:0]]
            )[0]

        return state.on_each(self._replicas, collectives.Program.TELL, gather)[0]

    def _share(self, places: tuple[int, ...]) -> None:
        """Give all replicas the variables at these places; all of them, if too many sets were."""
        if places not in self._sharings and len(self._sharings) >= collectives.MAX_VARIANTS - 1:
            places = tuple(range(self._count))
        if places not in self._sharings:
            self._sharings[places] = state.sharing(
                self._replicas,
                part=lambda replica: [replica.state()[index] for index in places],
                variant=len(self._sharings),
            )
        self._sharings[places]()
