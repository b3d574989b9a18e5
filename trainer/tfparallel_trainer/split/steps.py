"""One optimizer step of a model in stages: the lists, then sums, then each rank's own update."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer import errors, user
from tfparallel_trainer.data import feed, marks, nest, order
from tfparallel_trainer.mesh import collectives
from tfparallel_trainer.split import (
    actors,
    closing,
    exchange,
    member,
    partition,
    tracing,
)
from tfparallel_trainer.step import gradients, loss, replica, train

Shares = tuple[int, ...]
"""How many examples each place along the data axis has."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The ranks of this process and how they meet all others."""

    divided: partition.Partition
    members: Sequence[member.Member]
    between: exchange.Exchange
    variants: dict[tuple[str, Shares], int] = dataclasses.field(default_factory=dict)
    """Numbers of traces, in the order in which all processes make them."""

    def variant(self, program: str, shares: Shares) -> int:
        """The number of a trace, the same on all processes."""
        return self.variants.setdefault((program, shares), len(self.variants))

    def shares(self, examples: int) -> Shares:
        """How examples are divided over the data axis."""
        return tuple(len(part) for part in order.split(examples, self.divided.mesh.data))

    def parts(self, batch: feed.Batch, shares: Shares) -> dict[int, Any]:
        """This process's parts of a batch by their place along the data axis, as tensors.

        Raises:
            UserCodeError: they are not divided as other processes think.
        """
        found: dict[int, Any] = {}
        for own, part in zip(self.members, batch.parts, strict=True):
            count = 0 if part is None else len(nest.leaves(part)[0])
            if count != shares[own.data]:
                raise errors.UserCodeError(
                    f"A batch of {batch.examples} examples has {count} for place {own.data} of the "
                    f"data axis, and {shares[own.data]} are expected: give batches of one size."
                )
            if part is not None and own.data not in found:
                found[own.data] = nest.convert(tf.convert_to_tensor, part)
        return found

    def spec(self, spec: Any, shares: Shares) -> dict[int, Any]:
        """The structure of what `parts` gives."""
        wanted = sorted({own.data for own in self.members if shares[own.data]})
        return {place: nest.convert(lambda leaf, n=shares[place]: _sized(leaf, n), spec)
                for place in wanted}


def _sized(leaf: tf.TensorSpec, examples: int) -> tf.TensorSpec:
    if None in leaf.shape[1:]:
        raise errors.UserCodeError(
            f"The data functions give examples of the shape {tuple(leaf.shape[1:])}, of which a "
            "part is not known before: give all examples one shape (pad them, or batch by length)."
        )
    return tf.TensorSpec((examples, *leaf.shape[1:]), leaf.dtype)


class TrainStep:
    """The step as a traced function; one for each way that a batch is divided.

    Args:
        module: the user's module, for the messages.
        ranks: those of this process.
        spec: structure of a part of a batch, as tf.TensorSpec [None, …].
        batch_size: examples of a whole batch.
        leaves_out: whether a step that is not finite changes nothing.
    """

    def __init__(
        self,
        module: user.Module,
        ranks: Ranks,
        spec: Any,
        batch_size: int,
        *,
        leaves_out: bool = False,
    ) -> None:
        self._module = module
        self._ranks = ranks
        self._spec = spec
        self._whole = ranks.shares(batch_size)
        self._leaves_out = leaves_out
        self._traced: dict[Shares, Any] = {}
        self._kinds: dict[int, list[gradients.Kind]] = {}

    def __call__(
        self, step: int, batch: feed.Batch, asked: frozenset[train.Flag]
    ) -> train.Outcome:
        """Make step number `step` (from 0) on this process's parts of a batch."""
        shares = self._ranks.shares(batch.examples)
        told = [*(float(flag in asked) for flag in train.Flag), *marks.summands(batch.mark)]
        outcome = self._function(shares)(
            tf.constant(step, tf.int64),
            tf.constant(told, tf.float64),
            self._ranks.parts(batch, shares),
        )
        own = self._ranks.members[0].head
        return train.outcome_of(own, step, [tensor.numpy() for tensor in outcome])

    def _function(self, shares: Shares) -> Any:
        if not all(shares) and not self._kinds:
            # Only a rank with examples knows which kinds of gradients its stage has.
            self._function(self._whole)
        if shares not in self._traced:
            self._traced[shares] = self._trace(shares)
        return self._traced[shares]

    def _trace(self, shares: Shares) -> Any:
        variant = self._ranks.variant("train", shares)

        def run(step: tf.Tensor, told: tf.Tensor, parts: Any) -> Any:
            self._ranks.between.begin(collectives.Program.TRAIN, variant)
            return self._run(shares, step, told, parts)

        with user.guard(self._module.path, "tracing a training step raised"):
            return tf.function(run, autograph=False).get_concrete_function(
                tf.TensorSpec((), tf.int64),
                tf.TensorSpec((len(train.Flag) + len(marks.summands(0)),), tf.float64),
                self._ranks.spec(self._spec, shares),
            )

    def _run(self, shares: Shares, step: tf.Tensor, told: tf.Tensor, parts: Any) -> Any:
        divided, between = self._ranks.divided, self._ranks.between
        defers = _defers(self._ranks.members[0].head, divided, self._spec)
        working = {}
        for own in self._ranks.members:
            share = actors.Share(
                part=parts.get(own.data),
                examples=shares[own.data],
                total=sum(shares),
                step=step,
            )
            working[own.rank] = actors.Training(own, divided, share, defers=defers)
        ending = closing.Closing(working, between, told, self._kinds, defers=defers)
        tracing.emit(divided, divided.training(shares), working, between, ending.total)
        return ending.update(leaves_out=self._leaves_out)


def _defers(own: replica.Replica, divided: partition.Partition, spec: Any) -> bool:
    """Whether the denominators of a batch are not in proportion to those of its parts."""
    _, _, weight = spec
    masked = {one.name for one in divided.model.outputs if one.mask is not None}
    return any(
        term.output in masked or (term.reduction == loss.WEIGHTED_MEAN and weight is not None)
        for term in own.terms
        if term.divided
    )
