"""Rejects models that may mix the examples of a batch.

A mesh divides a batch over its data axis and into microbatches. So what a model gives for an
example may depend neither on the others, nor on their number, nor on its place among them. Keras'
own layers keep to that where the batch is their first dimension. Operations that work on each
element do if all that they take has the batch at one place. Every other call is tried, twice, on
numbers that are drawn for some examples. One of these is in both batches, at another place and
among more others. What the call gives for it has to be the same. If the call draws at random, which
depends on all of that, only the others change. Statistics are added up by `objective.synchrony`.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.engines.split.model import graph, interpreter, operations, recording
from tfparallel_trainer.objective import trial

_BATCH_MIXERS = {"Concatenate", "CutMix", "MixUp", "Softmax", "UnitNormalization"}
"""Keras layers that may act along the batch dimension."""

_FIRST, _MOVED, _STAYING = (0, 1, 2), (3, 0, 4, 1), (0, 3, 4)
"""Which examples are in the first batch of a trial, and in the second: 0 is in both."""

_SCALES = np.array([1.0, 2.0, 0.5, 3.0, 0.25])
"""Of the numbers of each example, so that a mean over many numbers still tells them apart."""

_LENGTH = 8
"""Value for dimensions that are unknown until data is loaded."""

_MOST_WEIGHTS = 1 << 26
"""Numbers in the weights of a layer that is tried: no process need hold a larger one whole."""

_HALF_PRECISION = 2
"""Bytes of a number."""


def check(model: graph.Graph) -> None:
    """Refuse (UserCodeError) a model that is not shown to compute each example by itself."""
    used = {*model.output_tensors(), *(number for node in model.nodes for number in node.inputs)}
    fronts = dict.fromkeys(range(len(model.tensors)), 1)
    tried: dict[str, list[int]] = {}
    for node in model.nodes:
        growing = [number for number in node.inputs if model.tensors[number].batch is not None]
        outputs = [
            number
            for number in node.outputs
            if number in used and model.tensors[number].dtype != "none"
        ]
        if not growing or not outputs:
            continue
        front = _known_front(
            model, node, [*growing, *outputs], {fronts[number] for number in growing}
        )
        if front is not None:
            fronts |= dict.fromkeys(outputs, front)
            continue
        trial_key = _trial_key(model, node, outputs, fronts)
        if trial_key not in tried:
            tried[trial_key] = _tried_fronts(model, node, outputs, fronts)
        fronts |= dict(zip(outputs, tried[trial_key], strict=True))


def _known_front(
    model: graph.Graph, node: graph.Node, growing: Sequence[int], fronts: Collection[int]
) -> int | None:
    """How many copies of the batch stand one behind the other in what a node gives.

    The further rows that an example has follow each other. Takes the tensors that grow with the
    batch, and these numbers (`fronts`) for what the node takes; gives None if only a trial tells.
    """
    tensors = [model.tensors[graph_tensor] for graph_tensor in growing]
    if len(fronts) > 1 or len({graph_tensor.rows for graph_tensor in tensors}) > 1:
        return None
    if node.kind is graph.NodeKind.OPERATION:
        # As broadcasting does, from the last dimension.
        places = {
            None if graph_tensor.batch is None else graph_tensor.batch - len(graph_tensor.shape)
            for graph_tensor in tensors
        }
        is_known = len(places) == 1 and operations.name_of(node.calls) in operations.ELEMENTWISE
    else:
        leads = all(graph_tensor.batch == 0 for graph_tensor in tensors)
        is_known = leads and not (
            type(node.calls).__name__ in _BATCH_MIXERS or operations.runs_code_of_user(node)
        )
    return next(iter(fronts)) if is_known else None


def _trial_key(
    model: graph.Graph, node: graph.Node, outputs: Sequence[int], fronts: Mapping[int, int]
) -> str:
    """Cache key: operations with equal keys share one trial; layers have weights of their own."""
    if node.kind is not graph.NodeKind.OPERATION:
        return node.name

    def described(value: Any) -> Any:
        if isinstance(value, graph.Edge):
            number = value.tensor
            return node.inputs.index(number), model.tensors[number], fronts[number]
        return np.asarray(value).tobytes() if np.ndim(value) else value

    attributes = {name: attribute for name, attribute in vars(node.calls).items() if name[0] != "_"}
    attributes.pop("name", None)
    parts = (node.arguments, dict(node.keywords), attributes)
    places = [node.outputs.index(number) for number in outputs]
    return f"{node.calls.__class__}{keras.tree.map_structure(described, parts)}{places}"


def _tried_fronts(
    model: graph.Graph, node: graph.Node, outputs: Sequence[int], fronts: Mapping[int, int]
) -> list[int]:
    """The copies of the batch in some outputs of a node, as a trial shows them.

    It is a UserCodeError if what it gives for an example depends on others or on its place. So it
    is if that has another shape than Keras recorded, or cannot be computed.
    """
    weights = {key: model.variables[key] for key in node.variables}
    if sum(math.prod(variable.shape) for variable in weights.values()) > _MOST_WEIGHTS:
        return [1] * len(outputs)
    random = np.random.default_rng(0)
    draws = {number: draw(random, model.tensors[number], fronts[number]) for number in node.inputs}
    variables = {key: drawn_like(random, value) for key, value in weights.items()}
    is_random = any(key.startswith(recording.SEED_PREFIX) for key in node.variables)
    batches = (_FIRST, _STAYING if is_random else _MOVED)
    front_by_number: dict[int, int] = {}
    for training in (False, True):
        first, second = (
            _computed(
                model,
                node,
                {number: take(batch) for number, take in draws.items()},
                variables,
                training,
            )
            for batch in batches
        )
        for number in outputs:
            tensor = model.tensors[number]
            if all(
                None not in model.tensors[input_number].sized(1) for input_number in node.inputs
            ):
                interpreter.check_shape(model, node, first[number], tensor.sized(len(_FIRST)))
            front = _front(tensor, batches, (first[number], second[number]))
            if front is None or front_by_number.setdefault(number, front) != front:
                raise errors.UserCodeError(
                    f"{node.name} computes with all examples of a batch at once, and a mesh "
                    "divides the batch over its data axis and into microbatches. Let what the "
                    "model gives for an example depend on that example alone, or let mesh.data "
                    "and mesh.microbatches be 1.",
                    function="build_model",
                )
    return [front_by_number[number] for number in outputs]


def draw(
    random: np.random.Generator, tensor: graph.Tensor, front: int = 1
) -> Callable[[Sequence[int]], tf.Tensor]:
    """Draw numbers for each example; gives what puts those of some examples into a tensor."""
    sizes = [_LENGTH if size is None else size for size in tensor.sized(1)]
    if tensor.batch is None:
        same = _cast(random.uniform(0.1, 1.0, sizes), tensor.dtype)
        return lambda _: same
    before = math.prod(sizes[: tensor.batch])
    other_dims = math.prod(sizes) // (before * front)
    numbers = random.uniform(0.1, 1.0, (before, front, len(_SCALES), other_dims))
    numbers *= _SCALES[:, np.newaxis]

    def take(batch: Sequence[int]) -> tf.Tensor:
        shape = list(sizes)
        shape[tensor.batch or 0] = tensor.rows * len(batch)
        return _cast(numbers[:, :, batch].reshape(shape), tensor.dtype)

    return take


def drawn_like(random: np.random.Generator, variable: Any) -> tf.Tensor:
    """Numbers in place of a variable's."""
    return _cast(random.uniform(-0.5, 0.5, variable.shape), variable.dtype)


def _cast(numbers: Any, dtype: str) -> tf.Tensor:
    """Give numbers a type; those that are not real are 0 or 1, of which each looks a row up."""
    kind = tf.as_dtype(dtype)
    if kind.is_floating or kind.is_complex:
        return tf.cast(tf.constant(numbers), kind)
    bits = tf.constant((numbers * 1024).astype("int64") % 2)
    return tf.strings.as_string(bits) if kind is tf.string else tf.cast(bits, kind)


def _computed(
    model: graph.Graph,
    node: graph.Node,
    tensors: Mapping[int, tf.Tensor],
    variables: Mapping[str, tf.Tensor],
    training: bool,
) -> dict[int, Any]:
    """What a node gives, as arrays by the tensor's number; if it fails, it is a UserCodeError."""

    def run(inputs: Mapping[int, Any], values: Mapping[str, Any]) -> dict[int, Any]:
        with trial.moving_statistics():
            computed = interpreter.run_nodes(model, [node], inputs, values, training).tensors
        return {number: computed[number] for number in node.outputs if computed[number] is not None}

    try:
        with tf.device("CPU:0"):
            traced = tf.function(run, autograph=False).get_concrete_function(tensors, variables)
            return {number: tensor.numpy() for number, tensor in traced(tensors, variables).items()}
    except errors.TrainerError:
        raise
    except Exception as error:
        raise errors.UserCodeError(
            f"{node.name} cannot be tried on numbers that are drawn, which would show that it "
            f"computes each example by itself ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]}). Let it take any numbers, or let mesh.data and "
            "mesh.microbatches be 1.",
            function="build_model",
        ) from error


def _front(
    tensor: graph.Tensor, batches: Sequence[Sequence[int]], outputs: Sequence[Any]
) -> int | None:
    """The copies of the batch in an output that is twice the same for the first example."""
    batch_dimension = tensor.batch
    if batch_dimension is None:
        here, there = outputs
        return 1 if here.shape == there.shape and _is_same(here, there) else None
    rows = outputs[0].shape[batch_dimension] // len(batches[0])
    sizes = [rows * len(batch) for batch in batches]
    if sizes != [result.shape[batch_dimension] for result in outputs]:
        return None
    for front in (divisor for divisor in range(1, rows + 1) if rows % divisor == 0):
        here, there = (
            result.reshape(math.prod(result.shape[:batch_dimension]), front, len(batch), -1)[
                :, :, batch.index(0)
            ]
            for result, batch in zip(outputs, batches, strict=True)
        )
        if _is_same(here, there):
            return front
    return None


def _is_same(result: Any, other: Any) -> bool:
    """Whether numbers are the same, but for the order in which they were added up."""
    if result.dtype.kind in "OSUbiu":
        return bool(np.array_equal(result, other))
    near = 1e-3 if result.dtype.itemsize > _HALF_PRECISION else 3e-2
    kind = "complex128" if result.dtype.kind == "c" else "float64"
    here, there = (part.astype(kind) for part in (result, other))
    size = np.max(np.abs(here), where=np.isfinite(here), initial=0.0)
    return bool(np.allclose(here, there, rtol=near, atol=near * size, equal_nan=True))
