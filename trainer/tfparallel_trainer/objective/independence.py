"""Whether what an example adds to the loss is independent of the other examples of its batch.

Ranks compute the terms of the loss over their own parts of a batch, and add them up. That is the
loss of the whole batch if the model, the loss and `add_loss` take each example by itself, as far as
means and sums go. No rank can see from its part that they do not. So some examples are computed at
once and in two halves, which have to add up.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.data import nest
from tfparallel_trainer.objective import checks, loss, metrics, replica
from tfparallel_trainer.runtime import random_state

_EXAMPLES = 4
_PRECISIONS = {"float64": 1e-5, "float32": 1e-3, "bfloat16": 0.1, "float16": 0.1}
"""What rounding may change, relative to the sum: it depends on how many examples go together. Keras
computes some of float64 in float32, such as CTC."""
_REMEDY = (
    "Replicas and microbatches divide the batch, so let it be a mean over examples, or train "
    "without them."
)


def check(replica: replica.Replica, part: Any) -> None:
    """Refuse (UserCodeError) a loss in which examples, (x, y, sample_weight), depend on each other.

    A loss that is random is not refused: it differs for the same examples. No variable changes.
    """
    count = min(_EXAMPLES, len(nest.leaves(part)[0]))
    middle = count // 2
    if middle == 0:
        return
    whole = _sums(replica, part, 0, count)
    halves = _sums(replica, part, 0, middle) + _sums(replica, part, middle, count)
    alike = _alike(replica, whole, halves)
    if all(alike):
        return
    # What is random draws other numbers.
    for variable, seed in replica.seeds:
        variable.assign(seed + 1)
    repeated = _sums(replica, part, 0, count)
    for variable, seed in replica.seeds:
        variable.assign(seed)
    if all(_alike(replica, whole, repeated)):
        raise errors.UserCodeError(_sentence(replica.terms[alike.index(False)]))


def _sums(replica: replica.Replica, part: Any, first: int, end: int) -> Any:
    """Numerators and denominators of the terms over some examples [terms, 2]."""
    examples = nest.convert(lambda leaf: tf.convert_to_tensor(leaf)[first:end], part)

    def fractions() -> list[loss.Fraction]:
        with random_state.drawing_from(replica.generator):
            return [
                fraction
                for phase in replica.computations
                for fraction in phase.fractions(examples, replica.data, training=False)
            ]

    with tf.device(replica.device):
        computed = metrics.isolate(replica, fractions).result
    return np.array([[float(one.numerator), float(one.denominator)] for one in computed])


def _alike(replica: replica.Replica, whole: Any, other: Any) -> list[bool]:
    """Whether two sums are equal for each term, up to rounding."""
    types = (layer.compute_dtype for layer in checks.layers(replica.model))
    precision = max(_PRECISIONS.get(one, 0.0) for one in types)
    allowed = precision * np.maximum(np.abs(whole), np.abs(other))
    differs = np.abs(whole - other) > allowed  # not what is no number, which ends a step
    return [not term.any() for term in differs]


def _sentence(term: loss.Term) -> str:
    if not term.output:
        return f"What layers add by add_loss is no mean over the examples of a batch. {_REMEDY}"
    return (
        f"The loss of the output {term.output} is no mean over examples: it depends on which of "
        f"them are in a batch together. {_REMEDY}"
    )
