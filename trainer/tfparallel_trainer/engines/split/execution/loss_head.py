"""The compiled loss and metrics of a model without its layers: what the end of a pipeline needs.

A head has an input for each output of the model and an `Identity` of the output's name. So the
user's losses and metrics find their outputs by name.
"""

import contextlib
import enum
import inspect
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors, user
from tfparallel_trainer.comms import collectives, shape
from tfparallel_trainer.data import nest
from tfparallel_trainer.engines.split.layers import assignment
from tfparallel_trainer.engines.split.model import graph, interpreter
from tfparallel_trainer.engines.split.model import skeleton as skeletons
from tfparallel_trainer.objective import (
    independence,
    label_shapes,
    loss,
    metric_sums,
    phases,
    replica,
    tracing,
)


def build(
    module: user.Module,
    skeleton: Any,
    model: graph.Graph,
    data: collectives.Communicator,
    sample: Any,
) -> replica.Replica:
    """Compile a head with the user's `compile_model`, on the current device.

    `sample` is (x, y, sample_weight) of one example, with a leading axis of 1. A model that cannot
    be compiled, a loss that does not fit, and metrics that cannot be added up raise a
    UserCodeError. Returns a replica whose model is the head and whose optimizer is the user's, not
    yet built.
    """
    compile_arguments = _compiled(module, skeleton)
    head = _identities(skeleton, model)
    head.compile(**{**compile_arguments, "optimizer": skeleton.optimizer, "auto_scale_loss": False})
    _, y, weight = nest.convert(tf.convert_to_tensor, sample)
    y_pred = interpreter.outputs_of(model, _zeros(model))
    names = tuple(output.name for output in model.outputs)
    phase = phases.Compiled(head, names, has_targets=True, adds=False)
    specs = {
        output.tensor: tf.TensorSpec(
            model.tensors[output.tensor].shape, model.tensors[output.tensor].dtype
        )
        for output in model.outputs
    }
    y_specs = interpreter.outputs_of(model, specs)
    with computing_loss(module, model):
        loss.check_shapes(phase.terms, names, y, y_specs)
    with computing_loss(module, model, "metrics"):
        label_shapes.check_metrics(head, y, y_pred, y_specs)
    with user.guard(module.path, "computing the metrics of the first training example raised"):
        head.compute_metrics(None, y, y_pred, weight)
        head.reset_metrics()
        if data.size > 1:
            metric_sums.check(head, lambda: y_pred, (None, y, weight))
    return replica.Replica(
        device="",
        model=head,
        data=data,
        terms=list(phase.terms),
        outputs=names,
        seeds=[],
        computations=[phase],
    )


def outputs_with_gradient(
    module: user.Module, head: replica.Replica, model: graph.Graph, sample: Any
) -> frozenset[int]:
    """Return the numbers of the outputs to which the compiled losses have a gradient.

    `sample` is as in `build`.
    """
    _, y, weight = nest.convert(tf.convert_to_tensor, sample)
    real = [number for number, one in _zeros(model).items() if model.tensors[number].is_real]
    differentiated: set[int] = set()

    def compute(outputs: dict[int, Any], y: Any, weight: Any) -> None:
        with tf.GradientTape() as tape:
            tape.watch([outputs[number] for number in real])
            y_pred = interpreter.outputs_of(model, outputs)
            fractions = loss.fractions(head.terms, head.outputs, y, y_pred, weight)
            numerators = [fraction.numerator for fraction in fractions]
        gradients = tape.gradient(numerators, [outputs[number] for number in real])
        pairs = zip(real, gradients, strict=True)
        differentiated.update(number for number, gradient in pairs if gradient is not None)

    # Traced, not run: the loss may have a condition that this example does not meet.
    traced = tf.function(compute, autograph=False)
    with computing_loss(module, model):
        traced.get_concrete_function(_zeros(model), y, weight)
    return frozenset(differentiated)


@contextlib.contextmanager
def computing_loss(module: user.Module, model: graph.Graph, what: str = "loss") -> Iterator[None]:
    """Turn what a loss raises into a UserCodeError.

    If labels seem not to fit only because a layer returns another shape than it declares, the error
    names the layer.
    """
    try:
        with user.guard(module.path, f"computing the {what} of the first training example raised"):
            yield
    except errors.UserCodeError:
        interpreter.check_recorded(model)
        raise


def check_loss(head: replica.Replica, model: graph.Graph, part: Any, targets: Any = None) -> None:
    """Refuse (UserCodeError) a loss in which examples depend on each other, for drawn outputs.

    `targets` are some from all over the data.
    """
    _, y, weight = part
    count = len(nest.leaves(y)[0])
    tensors = [model.tensors[edge.tensor] for edge in keras.tree.flatten(model.output_structure)]
    if any(graph_tensor.batch != 0 or graph_tensor.rows != 1 for graph_tensor in tensors):
        return
    random = np.random.default_rng(0)
    drawn = [
        tf.cast(
            random.uniform(size=[size or 1 for size in graph_tensor.sized(count)]),
            graph_tensor.dtype,
        )
        for graph_tensor in tensors
    ]
    independence.check(head, (drawn, y, weight), targets)


def _zeros(model: graph.Graph) -> dict[int, tf.Tensor]:
    """Zeros in place of the model's outputs for one example, by number."""
    tensors = {output.tensor: model.tensors[output.tensor] for output in model.outputs}
    return {
        number: tf.zeros([size or 1 for size in graph_tensor.shape], graph_tensor.dtype)
        for number, graph_tensor in tensors.items()
    }


def trace(head: replica.Replica, model: graph.Graph, spec: Any) -> tracing.Trace | None:
    """Find what the loss, the metrics and the learning rate read besides examples.

    If an output does not have a row for each example, nothing is found.
    """
    _, y, weight = spec
    tensors = [model.tensors[edge.tensor] for edge in keras.tree.flatten(model.output_structure)]
    if any(graph_tensor.batch != 0 or graph_tensor.rows != 1 for graph_tensor in tensors):
        return None
    outputs = [
        tf.TensorSpec((None, *graph_tensor.shape[1:]), graph_tensor.dtype)
        for graph_tensor in tensors
    ]
    return tracing.trace(head, (outputs, y, weight))


def _compiled(module: user.Module, skeleton: Any) -> dict[str, Any]:
    """Let the user compile the skeleton again; returns the arguments of `compile`."""
    compile_arguments: dict[str, Any] = {}
    signature = inspect.signature(keras.Model.compile)

    def compile_skeleton(*arguments: Any, **keywords: Any) -> None:
        bound = signature.bind(skeleton, *arguments, **keywords)
        compile_arguments.update(bound.arguments)
        keras.Model.compile(*bound.args, **bound.kwargs)

    skeleton.compile = compile_skeleton
    try:
        skeletons.compile_model(module, skeleton)
    finally:
        del skeleton.compile
    del compile_arguments["self"]
    return compile_arguments


def _identities(skeleton: Any, model: graph.Graph) -> Any:
    edges = keras.tree.flatten(model.output_structure)
    names = getattr(skeleton, "output_names", None)
    if names is None or len(names) != len(edges):
        names = [loss.names_of(skeleton, edge)[0] for edge in edges]
    remaining = iter(names)
    inputs: list[Any] = []

    def output_of(edge: graph.Edge) -> Any:
        tensor = model.tensors[edge.tensor]
        inputs.append(keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype))
        identity = keras.layers.Identity(name=next(remaining), dtype=tensor.dtype)
        return identity(inputs[-1])

    identities = keras.tree.map_structure(output_of, model.output_structure)
    return keras.Model(inputs, identities)


def axis_of_examples(
    compiled_head: replica.Replica, plan: assignment.Assignment
) -> shape.Axis | None:
    """Return the axis whose ranks divide the examples of a microbatch for the loss and the metrics.

    If one axis shards all outputs, an all-to-all gives each of its ranks whole outputs of some
    examples. To gather them would let each rank keep all outputs, and compute the same loss. Only
    Keras' own losses and metrics are known to take each example by itself.
    """
    model = plan.model
    axes = [axis for axis, degree in plan.degrees.items() if degree > 1]
    if len(axes) != 1:
        return None
    tensors = [model.tensors[number] for number in model.output_tensors()]
    is_sharded = all(axes[0] in plan.layouts[output.tensor].axes for output in model.outputs)
    by_example = all((tensor.batch, tensor.rows) == (0, 1) for tensor in tensors) and all(
        term.is_by_example for term in compiled_head.terms if term.output
    )
    if is_sharded and by_example and metric_sums.are_of_keras(compiled_head.model):
        return axes[0]
    return None


class LossDivision(enum.Enum):
    """When the denominators of the loss over the whole batch become known."""

    AHEAD = "ahead"
    """Before the step: they are proportional to the examples of each part."""
    BETWEEN = "between"
    """After all forward passes, before the first backward pass."""
    LAST = "last"
    """Only after the backward pass: a single loss's gradients are divided at the end."""


def division_of(
    compiled_head: replica.Replica, model: graph.Graph, spec: Any, *, adds: bool
) -> LossDivision:
    """Return when the denominators of the loss over a batch become known.

    `adds`: layers add losses.
    """
    _, y, weight = spec
    masked = {output.name for output in model.outputs if output.mask is not None}
    masked |= _outputs_with_masking_loss(compiled_head, model, y)
    unknown = [
        term
        for term in compiled_head.terms
        if term.output in masked or (term.reduction == loss.WEIGHTED_MEAN and weight is not None)
    ]
    if not any(term.divided for term in unknown):
        return LossDivision.AHEAD
    several = len(compiled_head.terms) > 2 or adds  # the further one is what layers add
    return LossDivision.BETWEEN if several else LossDivision.LAST


def _outputs_with_masking_loss(
    compiled_head: replica.Replica, model: graph.Graph, y: Any
) -> set[str]:
    """Return the outputs whose losses mask some of their values, as ignore_class does."""
    zeros = nest.convert(lambda leaf: tf.zeros([size or 1 for size in leaf.shape], leaf.dtype), y)
    targets = loss.split(zeros, compiled_head.outputs, "y")
    predictions = {
        output.name: tf.zeros([size or 1 for size in tensor.shape], tensor.dtype)
        for output in model.outputs
        for tensor in [model.tensors[output.tensor]]
    }
    return {
        term.output
        for term in compiled_head.terms
        if term.output and loss.masks_values(term, targets[term.output], predictions[term.output])
    }
