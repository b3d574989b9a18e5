"""Forward and backward pass of a segment of a stage.

A segment either keeps what its forward pass computes, or only what it takes. Then it computes the
rest again when its backward pass begins (Chen et al., Training Deep Nets with Sublinear Memory
Cost, 2016).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tfparallel_trainer.engines.split.layers import adjoint
from tfparallel_trainer.engines.split.model import interpreter
from tfparallel_trainer.objective import loss

Counted = tuple[loss.Term, loss.Fraction]
"""A term of the loss over some examples."""


class Compute(Protocol):
    """Runs a segment."""

    def __call__(self, *, counts_metrics: bool) -> tuple[interpreter.Part, list[Counted]]:
        """Give what it computes; metrics count its examples if asked to."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """What has come back to a stage. What has no gradient is not there."""

    terms: dict[str, tf.Tensor]
    """Of the numerators of the loss, by the names of their terms."""
    tensors: dict[int, tf.Tensor] = dataclasses.field(default_factory=dict)
    """By number."""
    weights: dict[str, Any] = dataclasses.field(default_factory=dict)
    """By key, dense or sparse."""

    def add_to_tensor(self, number: int, gradient: tf.Tensor) -> None:
        """Add a gradient of a tensor that several segments or stages take."""
        earlier = self.tensors.get(number)
        self.tensors[number] = gradient if earlier is None else earlier + gradient


class SegmentPass:
    """The passes of one segment for one microbatch."""

    def __init__(
        self,
        compute: Compute,
        tensors: Mapping[int, Any],
        weights: Mapping[str, Any],
        outputs: Sequence[int],
        *,
        recomputes: bool,
    ) -> None:
        """Make the forward pass.

        Args:
            compute: uses the tensors and the weights.
            tensors: those with gradients that the segment takes, by number.
            weights: those that are trained, by key.
            outputs: the tensors that others take of it.
            recomputes: whether the backward pass computes all of it again.
        """
        self._compute, self._tensors, self._weights = compute, tensors, weights
        self._outputs = outputs
        self._recorded: _Recorded | None = None
        if recomputes:
            self.part, self.terms = compute(counts_metrics=True)
        else:
            self._recorded = self._record(counts_metrics=True)
            self.part, self.terms = self._recorded.part, self._recorded.terms

    def add_gradients(self, gradients: Gradients) -> None:
        """Make the backward pass: add to the gradients of what the segment takes."""
        names = [term.output for term, _ in self.terms]
        numbers = [number for number in self._outputs if number in gradients.tensors]
        cotangents = [
            *(gradients.terms[name] for name in names),
            *(gradients.tensors[number] for number in numbers),
        ]
        if not cotangents:
            return
        recorded = self._recorded
        if recorded is None:
            # Or TensorFlow would compute all segments again at once.
            with tf.control_dependencies(cotangents):
                recorded = self._record(counts_metrics=False)
        computed = recorded.tape.gradient(
            [
                *(fraction.numerator for _, fraction in recorded.terms),
                *(recorded.part.tensors[number] for number in numbers),
            ],
            [*self._tensors.values(), *self._weights.values()],
            output_gradients=cotangents,
        )
        for number, gradient in zip(self._tensors, computed, strict=False):
            if gradient is not None:
                gradients.add_to_tensor(number, tf.convert_to_tensor(gradient))
        for key, gradient in zip(self._weights, computed[len(self._tensors) :], strict=True):
            gradients.weights[key] = _add(gradients.weights.get(key), gradient)

    def _record(self, *, counts_metrics: bool) -> "_Recorded":
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([*self._tensors.values(), *self._weights.values()])
            part, terms = self._compute(counts_metrics=counts_metrics)
            ends = adjoint.join_gradients([fraction.numerator for _, fraction in terms])
            terms = [
                (term, dataclasses.replace(fraction, numerator=end))
                for (term, fraction), end in zip(terms, ends, strict=True)
            ]
        return _Recorded(tape, part, terms)


@dataclasses.dataclass(frozen=True, slots=True)
class _Recorded:
    """A forward pass on a tape."""

    tape: tf.GradientTape
    part: interpreter.Part
    terms: list[Counted]


def _add(first: Any, second: Any) -> Any:
    """Add gradients of one weight as a tape does: the rows of look-ups stay apart."""
    if first is None or second is None:
        return second if first is None else first
    if not any(isinstance(gradient, tf.IndexedSlices) for gradient in (first, second)):
        return first + second
    parts = [_as_rows(gradient) for gradient in (first, second)]
    return tf.IndexedSlices(
        tf.concat([part.values for part in parts], 0),
        tf.concat([part.indices for part in parts], 0),
        parts[0].dense_shape,
    )


def _as_rows(gradient: Any) -> tf.IndexedSlices:
    if isinstance(gradient, tf.IndexedSlices):
        indices = tf.cast(gradient.indices, tf.int64)
        return tf.IndexedSlices(gradient.values, indices, gradient.dense_shape)
    shape = tf.constant(gradient.shape, tf.int64)
    return tf.IndexedSlices(gradient, tf.range(shape[0]), shape)
