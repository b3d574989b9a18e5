"""Refuses models of which nothing shows that they compute each example by itself.

A mesh divides a batch over its data axis and into microbatches, so what a model gives for an
example may depend neither on the others nor on its place among them. Keras' own layers keep to that
where the batch is their first dimension, and operations that work on each element do where all that
they take has the batch at one place. Every other call is tried on numbers that are drawn for some
examples, twice: with one of these at another place, among others. What it gives for that one has to
be the same. If the call draws at random, which depends on the place, the example stays. Layers that
gather statistics, such as BatchNormalization, are added up where they are asked for
(`objective.synchrony`).
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.engines.split.model import execution, graph, operations, recording
from tfparallel_trainer.objective import lookups

_ALONG = {"Concatenate", "Softmax", "UnitNormalization"}
"""Keras' layers that work along any axis."""

_FIRST, _MOVED, _STAYING = (0, 1, 2), (3, 0, 4), (0, 3, 4)
"""Which examples are in the first batch of a trial, and in the second: 0 is in both."""

_EXAMPLES = len(_FIRST)
_SCALES = np.array([1.0, 2.0, 0.5, 3.0, 0.25])
"""Of the numbers of each example, so that a mean over many numbers still tells them apart."""

_LENGTH = 8
"""Stands for dimensions that only the data tells."""

_MOST_WEIGHTS = 1 << 26
"""Numbers in the weights of a layer that is tried: no process need hold a larger one whole."""

_HALF = 2
"""Bytes of a number of half precision."""

Fronts = Mapping[int, int]
"""How many copies of the batch a tensor has one behind the other, by the tensor's number; the
further rows that an example has follow each other."""


def check(model: graph.Graph) -> None:
    """See that a model computes each example by itself.

    Raises:
        UserCodeError: a call does not, or no trial can show it.
    """
    used = {*model.output_tensors(), *(one for node in model.nodes for one in node.inputs)}
    fronts = dict.fromkeys(range(len(model.tensors)), 1)
    for node in model.nodes:
        growing = [one for one in node.inputs if model.tensors[one].batch is not None]
        real = [one for one in node.outputs if one in used and model.tensors[one].dtype != "none"]
        fixed = [one for one in real if model.tensors[one].batch is None]
        kept = [one for one in real if one not in fixed]
        if growing and fixed and _reads(model, node, fixed):
            raise _refusal(node)
        if growing and kept:
            front = _known_front(model, node, growing, {fronts[one] for one in growing})
            fronts |= (
                dict.fromkeys(kept, front) if front else _tried_fronts(model, node, kept, fronts)
            )


def _refusal(node: graph.Node) -> errors.UserCodeError:
    return errors.UserCodeError(
        f"{node.name} computes with all examples of a batch at once, and a mesh divides the batch "
        "over its data axis and into microbatches: let what the model gives for an example depend "
        "on that example alone, or let mesh.data and mesh.microbatches be 1."
    )


def _known_front(
    model: graph.Graph, node: graph.Node, growing: Sequence[int], fronts: Collection[int]
) -> int | None:
    """The copies of the batch in what a node gives; None where only a trial tells."""
    tensors = [model.tensors[one] for one in growing]
    if len(fronts) > 1 or len({one.rows for one in tensors}) > 1:
        return None
    if node.kind is graph.Kind.OPERATION:
        # As broadcasting does, from the last dimension.
        is_aligned = len({(one.batch or 0) - len(one.shape) for one in tensors}) == 1
        is_known = is_aligned and operations.name_of(node.calls) in operations.ELEMENTWISE
    else:
        leads = all(one.batch == 0 for one in tensors)
        is_known = leads and not (
            type(node.calls).__name__ in _ALONG or operations.runs_code_of_user(node)
        )
    return next(iter(fronts)) if is_known else None


def _reads(model: graph.Graph, node: graph.Node, fixed: Sequence[int]) -> bool:
    """Whether some outputs, which do not grow with the batch, depend on what examples hold.

    A table of positions, say, depends on how long they are at most.
    """

    def call(tensors: dict[int, tf.Tensor]) -> None:
        with keras.StatelessScope(initialize_variables=False):
            variables = {
                key: tf.zeros(model.variables[key].shape, model.variables[key].dtype)
                for key in node.variables
            }
            outputs = execution.run_nodes(model, [node], tensors, variables, training=False).tensors
        starts = [tensor for tensor in tensors.values() if tensor is not None]
        depends.extend(
            lookups.depends(outputs[one], starts) for one in fixed if outputs[one] is not None
        )

    depends: list[bool] = []
    specs = {
        one: tf.TensorSpec(model.tensors[one].sized(_EXAMPLES), model.tensors[one].dtype)
        for one in node.inputs
    }
    tf.function(call, autograph=False).get_concrete_function(specs)
    return any(depends)


def _tried_fronts(
    model: graph.Graph, node: graph.Node, kept: Sequence[int], fronts: Fronts
) -> dict[int, int]:
    """The copies of the batch in some outputs of a node, as a trial shows them.

    Raises:
        UserCodeError: what it gives for an example depends on others or on its place, has another
            shape than Keras was told, or cannot be computed.
    """
    weights = {key: model.variables[key] for key in node.variables}
    if sum(math.prod(one.shape) for one in weights.values()) > _MOST_WEIGHTS:
        return dict.fromkeys(kept, 1)
    random = np.random.default_rng(0)
    draws = {one: _draw(random, model.tensors[one], fronts[one]) for one in node.inputs}
    variables = {
        key: _cast(random.uniform(-0.5, 0.5, one.shape), one.dtype) for key, one in weights.items()
    }
    is_random = any(key.startswith(recording.SEED_PREFIX) for key in node.variables)
    second_places = _STAYING if is_random else _MOVED
    batches = [
        {one: draw(places) for one, draw in draws.items()} for places in (_FIRST, second_places)
    ]
    known: dict[int, int] = {}
    for training in (False,) if _gathers(node) else (False, True):
        first, second = _outputs(model, node, batches, variables, training)
        for one in kept:
            _check_shape(model, node, one, first[one])
            place = second_places.index(0)
            front = _front(model.tensors[one], first[one], second[one], place)
            if front is None or known.setdefault(one, front) != front:
                raise _refusal(node)
    return known


def _gathers(node: graph.Node) -> bool:
    """Whether a node normalizes by its batch in training, as Keras' layer within it does."""
    return node.kind is not graph.Kind.OPERATION and any(
        isinstance(layer, keras.layers.BatchNormalization) for layer in node.calls._flatten_layers()
    )


def _draw(
    random: np.random.Generator, tensor: graph.Tensor, front: int
) -> Callable[[Sequence[int]], tf.Tensor]:
    """Draw numbers for each example; gives what puts those of some examples into a tensor."""
    sizes = [_LENGTH if size is None else size for size in tensor.sized(_EXAMPLES)]
    if tensor.batch is None:
        same = _cast(random.uniform(0.1, 1.0, sizes), tensor.dtype)
        return lambda _: same
    before = math.prod(sizes[: tensor.batch])
    rest = math.prod(sizes) // (before * front * _EXAMPLES)
    numbers = random.uniform(0.1, 1.0, (before, front, len(_SCALES), rest))
    numbers *= _SCALES[:, np.newaxis]
    return lambda places: _cast(numbers[:, :, places].reshape(sizes), tensor.dtype)


def _cast(numbers: Any, dtype: str) -> tf.Tensor:
    """Give numbers a type; those that are not real are 0 or 1, of which each looks a row up."""
    kind = tf.as_dtype(dtype)
    if kind.is_floating or kind.is_complex:
        return tf.cast(tf.constant(numbers), kind)
    bits = tf.constant((numbers * 1024).astype("int64") % 2)
    return tf.strings.as_string(bits) if kind is tf.string else tf.cast(bits, kind)


def _outputs(
    model: graph.Graph,
    node: graph.Node,
    batches: Sequence[Mapping[int, tf.Tensor]],
    variables: Mapping[str, tf.Tensor],
    training: bool,
) -> list[dict[int, Any]]:
    """What a node gives for some batches, as arrays by the tensor's number.

    Raises:
        UserCodeError: it fails.
    """

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def run(tensors: Mapping[int, Any], values: Mapping[str, Any]) -> dict[int, Any]:
        tensors = execution.run_nodes(model, [node], tensors, values, training).tensors
        return {one: tensors[one] for one in node.outputs if tensors[one] is not None}

    try:
        with tf.device("CPU:0"):
            return [
                {one: tensor.numpy() for one, tensor in run(batch, variables).items()}
                for batch in batches
            ]
    except Exception as error:
        raise errors.UserCodeError(
            f"{node.name} cannot be tried on numbers that are drawn, which would show that it "
            f"computes each example by itself ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]}): let it take any numbers, or let mesh.data and "
            "mesh.microbatches be 1."
        ) from error


def _check_shape(model: graph.Graph, node: graph.Node, number: int, output: Any) -> None:
    """See that a node gives what Keras was told.

    Raises:
        UserCodeError: it gives another shape.
    """
    shape = model.tensors[number].sized(_EXAMPLES)
    is_known = all(None not in model.tensors[one].sized(1) for one in node.inputs)
    if is_known and not tf.TensorShape(shape).is_compatible_with(output.shape):
        raise errors.UserCodeError(
            f"{node.name} gives a tensor of the shape {output.shape}, and Keras was told {shape}: "
            "mend its compute_output_shape, or leave it out."
        )


def _front(tensor: graph.Tensor, first: Any, second: Any, place: int) -> int | None:
    """The copies of the batch in an output, if both outputs have the same of one example.

    Args:
        tensor: the output.
        first: what was computed with the example in front.
        second: what was computed with it at a place.
        place: which.
    """
    dimension = tensor.batch or 0
    rows, rest = divmod(first.shape[dimension], _EXAMPLES)
    before = math.prod(first.shape[:dimension])
    for front in (one for one in range(1, rows + 1) if not rest and rows % one == 0):
        here, there = (one.reshape(before, front, _EXAMPLES, -1) for one in (first, second))
        if _is_same(here[:, :, 0], there[:, :, place]):
            return front
    return None


def _is_same(one: Any, other: Any) -> bool:
    """Whether numbers are the same, but for the order in which they were added up."""
    if one.dtype.kind in "OSUbiu":
        return bool(np.array_equal(one, other))
    near = 1e-3 if one.dtype.itemsize > _HALF else 3e-2
    here, there = (part.astype("complex128") for part in (one, other))
    size = np.max(np.abs(here), where=np.isfinite(here), initial=0.0)
    return bool(np.allclose(here, there, rtol=near, atol=near * size, equal_nan=True))
