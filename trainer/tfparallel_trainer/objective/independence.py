"""Whether what an example adds to the loss is independent of the other examples of its batch.

Ranks compute the terms of the loss over their own parts of a batch, and add them up. The sum is the
loss of the whole batch if the loss, the model and `add_loss` are means or sums over examples. A
rank cannot find out from its part alone. So the trainer computes some examples at once and in two
parts, whose terms have to add up:

* The first examples, and others like them, go through the model as in inference and as in training
  (see `trial`). They go through again with random weights. For example, a model whose last kernel
  is initialised with zeros returns the same, whatever the layers before it do.
* Random targets and predictions of the data's kind go through each loss that is not Keras' own (see
  `random_outputs`). They follow from fixed seeds, and from examples all over the data if these are
  at hand. So the outcome does not depend on the first examples alone.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors, random_state, user
from tfparallel_trainer.comms import collectives
from tfparallel_trainer.data import nest
from tfparallel_trainer.objective import checks, loss, metric_sums, phases, random_outputs, trial
from tfparallel_trainer.objective.replica import Replica

EXAMPLES = 8
"""Number of examples in a trial."""

POOL = 256
"""Number of targets, from all over the data, that show their kind."""

_FEWEST = 4
"""Minimum number of examples. If a part has fewer, similar ones are added."""

_FIRST = 3
"""Number of examples in the first part: parts need not be halves."""

_SEEDS = (0, 1)
"""Seeds of two trials. Rounding may look like a dependence in one of them, but a dependence shows
in both."""

_MOST = 1 << 24
"""Maximum number of elements of random predictions."""

_PRECISIONS = {"float64": 1e-5, "float32": 1e-3, "bfloat16": 0.1, "float16": 0.1}
"""Relative differences of a sum that rounding may cause, because the number of examples in a batch
changes it. Keras computes some float64 losses in float32, such as CTC."""
_REMEDY = (
    "Replicas and microbatches divide the batch, so let it be a mean over examples, or train "
    "without them."
)

_Weights = Sequence[tuple[Any, tf.Tensor]]
"""Variables, with their values in a trial."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Computation:
    """Computes the terms of a loss in a trial."""

    terms_of: Callable[[Any, bool], list[loss.Fraction]]
    """Returns the terms. Takes (x, y, sample_weight), and whether the model runs as in training."""
    weights: _Weights = ()
    """Variables that have other values than in the model."""


def check(replica: Replica, part: Any, targets: Any = None) -> None:
    """Refuse (UserCodeError) a loss in which examples, (x, y, sample_weight), depend on each other.

    `targets` come from all over the data. A loss that draws random numbers by other means than
    keras.random is not refused. No variable changes.
    """
    part = nest.convert(lambda leaf: np.asarray(leaf)[:EXAMPLES], part)
    several = random_outputs.varied(part, max(_FEWEST, len(nest.leaves(part)[0])))
    _try(replica, _of_model(replica), several, training=False)
    if checks.runs_user_code(replica.model):
        _try(replica, _of_model(replica), several, training=True)
        _try_drawn_weights(replica, several)
    _, y, _ = part
    if y is None or all(term.is_by_example for term in replica.terms if term.output):
        return
    pool = y if targets is None else targets
    for pattern in random_outputs.PATTERNS:
        _try_drawn(replica, part, pool, pattern)


def _try(replica: Replica, computation: _Computation, examples: Any, *, training: bool) -> None:
    term = _dependent(replica, computation, replica.terms, examples, training)
    if term is not None:
        raise _refusal(replica.model, term, training)


def _try_drawn(replica: Replica, part: Any, pool: Any, pattern: str) -> None:
    """Try random targets."""

    def dependent(seed: int) -> loss.Term | None:
        computation, terms, examples = _drawn(replica, part, pool, pattern, seed)
        return _dependent(replica, computation, terms, examples, False)

    _refuse_if_twice(replica, dependent, training=False)


def _try_drawn_weights(replica: Replica, examples: Any) -> None:
    """Try random weights, as in training."""

    def dependent(seed: int) -> loss.Term | None:
        computation = _of_model(replica, trial.drawn_weights(replica.model, seed))
        return _dependent(replica, computation, replica.terms, examples, True)

    _refuse_if_twice(replica, dependent, training=True)


def _refuse_if_twice(
    replica: Replica, dependent: Callable[[int], loss.Term | None], *, training: bool
) -> None:
    """Refuse if a term is dependent with each seed.

    Errors of the user's code with random values do not count.
    """
    term = None
    for seed in _SEEDS:
        with contextlib.suppress(Exception):
            term = dependent(seed)
            if term is not None:
                continue
        return
    if term is not None:
        raise _refusal(replica.model, term, training)


def _drawn(
    replica: Replica, part: Any, pool: Any, pattern: str, seed: int
) -> tuple[_Computation, list[loss.Term], Any]:
    """Return the computation of some terms for random targets, these terms, and the examples."""
    x, _, weight = part
    y = random_outputs.targets(pool, EXAMPLES, pattern, seed)
    weight = random_outputs.weights(weight, EXAMPLES, seed)
    (phase, *others) = replica.computations
    if others or not isinstance(phase, phases.Compiled):
        return _of_model(replica), replica.terms, (random_outputs.varied(x, EXAMPLES), y, weight)
    with keras.StatelessScope(), tf.device(replica.device):
        outputs = replica.model(nest.convert(tf.convert_to_tensor, x), training=False)
    count = EXAMPLES
    if sum(int(np.prod(leaf.shape[1:])) for leaf in nest.leaves(outputs)) * count > _MOST:
        count = EXAMPLES // 2
        y, weight = nest.convert(lambda leaf: leaf[::2], (y, weight))
    predicted = random_outputs.predictions(outputs, count, seed)
    if seed % 2 == 0:
        predicted = _near(predicted, y)
    terms = [term for term in replica.terms if term.output and not term.is_by_example]

    def fractions(examples: Any, _: bool) -> list[loss.Fraction]:
        return loss.fractions(terms, replica.outputs, examples[1], examples[0], examples[2])

    return _Computation(fractions), terms, (predicted, y, weight)


def _near(predicted: Any, y: Any) -> Any:
    """Move predictions close to the targets of equal shapes, in the order of outputs."""
    flat, targets = nest.leaves(predicted), nest.leaves(y)
    if len(flat) != len(targets):
        return predicted
    return nest.packed(
        predicted, [random_outputs.near(*pair) for pair in zip(flat, targets, strict=True)]
    )


def _of_model(replica: Replica, weights: _Weights = ()) -> _Computation:
    alone = collectives.Communicator(0, 1, 0, replica.device)

    def fractions(examples: Any, training: bool) -> list[loss.Fraction]:
        with random_state.drawing_from(replica.generator):
            return [
                fraction
                for phase in replica.computations
                for fraction in phase.fractions(examples, alone, training=training)
            ]

    return _Computation(fractions, weights)


def _dependent(
    replica: Replica,
    computation: _Computation,
    terms: list[loss.Term],
    examples: Any,
    training: bool,
) -> loss.Term | None:
    """Return the first term that differs between the examples at once and in parts."""
    count = len(nest.leaves(examples)[0])
    middle = min(_FIRST, count // 2)

    def sums(first: int, end: int, known_sums: Any = None) -> tuple[Any, trial.Sums, list[Any]]:
        return _sums(replica, computation, _rows(examples, first, end), training, known_sums)

    whole, added, draws = sums(0, count)
    parts = [sums(*bounds, added.addends) for bounds in ((0, middle), (middle, count))]
    both = parts[0][0] + parts[1][0]
    alike = _alike(replica, whole, both)
    if all(alike) and _add_up(added, [sums_of_part for _, sums_of_part, _ in parts]):
        return None
    if draws != parts[0][2] or not all(_alike(replica, whole, sums(0, count)[0])):
        # Random operations draw other numbers for other examples.
        for variable, seed in replica.seeds:
            variable.assign(seed + 1)
        repeated = sums(0, count)[0]
        for variable, seed in replica.seeds:
            variable.assign(seed)
        if not all(_alike(replica, whole, repeated)):
            return None
    return terms[alike.index(False) if False in alike else 0]


def _add_up(whole: trial.Sums, parts: list[trial.Sums]) -> bool:
    """Whether the layers' sums over replicas are the same for the parts and for the whole."""
    if any(len(part.addends) != len(whole.addends) for part in parts):
        return False

    def is_sum(total: Any, *addends: Any) -> bool:
        near = 1e-6 * np.max(np.abs(total), initial=1)
        return bool(np.allclose(total, np.add(*addends), rtol=1e-3, atol=near))

    return all(
        is_sum(total, *addends)
        for total, *addends in zip(whole.addends, *(part.addends for part in parts), strict=True)
    )


def _rows(examples: Any, first: int, end: int) -> Any:
    return nest.convert(lambda leaf: tf.convert_to_tensor(leaf)[first:end], examples)


def _sums(
    replica: Replica, computation: _Computation, examples: Any, training: bool, known_sums: Any
) -> tuple[Any, trial.Sums, list[Any]]:
    """Numerators and denominators of the terms over some examples [terms, 2]."""
    sums = trial.Sums(known_sums)
    with (
        tf.device(replica.device),
        trial.unchanged(replica.model),
        trial.moving_statistics(),
        trial.same_draws() as draws,
        sums,
    ):
        computed = metric_sums.isolate(
            replica, lambda: computation.terms_of(examples, training), values=computation.weights
        ).result
    numbers = np.array(
        [[float(fraction.numerator), float(fraction.denominator)] for fraction in computed]
    )
    return numbers, sums, draws.shapes


def _alike(replica: Replica, whole: Any, other: Any) -> list[bool]:
    """Return for each term whether two sums are equal, up to rounding."""
    types = (layer.compute_dtype for layer in checks.layers(replica.model))
    precision = max(_PRECISIONS.get(dtype, 0.0) for dtype in types)
    allowed = precision * np.maximum(np.abs(whole), np.abs(other))
    differs = np.abs(whole - other) > allowed  # not NaN, which ends a step
    return [not term.any() for term in differs]


def _refusal(model: Any, term: loss.Term, training: bool) -> errors.UserCodeError:
    while_training = " while it trains" if training else ""
    if not term.output:
        return errors.UserCodeError(
            f"What {_name_adding(model)} by add_loss{while_training} is no mean over the examples "
            f"of a batch. {_REMEDY}",
            function="build_model",
        )
    return errors.UserCodeError(
        f"{term.title} is no mean over examples: it depends{while_training} on which of them are "
        f"in a batch together. {_REMEDY}",
        function="compile_model" if term.compiled is not None else "build_model",
    )


def _name_adding(model: Any) -> str:
    """Name the layers that added losses in the last call: the user's if there are any."""
    adding = [layer for layer in checks.layers(model) if layer._losses or layer._loss_ids]
    custom = [layer for layer in adding if not type(layer).__module__.startswith("keras.")]
    named = [f"{layer.name}, {user.describe(layer)}," for layer in custom or adding]
    match named:
        case []:
            return "layers add"
        case [one]:
            return f"the layer {one} adds"
    return f"the layers {' '.join(named)} add"
