"""What is planned: a recorded model with what it costs, on devices."""

import collections
import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import assignment, elementwise, layout
from tfparallel_trainer.engines.split.layers.rules import registry
from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.pipeline import schedule
from tfparallel_trainer.engines.split.planning import choose, costs, hardware, model_costs

_SIZES = (2, 3, 5, 7, 11, 13, 17)
"""Different sizes for the dimensions of a stand-in, so that its slots' dimensions tell theirs."""

_IN_TURN = (keras.optimizers.Adafactor, keras.optimizers.Muon)
"""They compute norms and products of a weight's gradient, which come one after the other."""

_Kind = tuple[tuple[int, ...], str]


def of(
    model: graph.Graph,
    optimizer: Any,
    cluster: hardware.Cluster,
    length: int | None = None,
    measured: Sequence[costs.NodeTime] | None = None,
) -> choose.Subject:
    """Put together what the planner asks for.

    Args:
        optimizer: the one that the user compiled it with; None: nothing of it is counted.
        length: value for dimensions that are unknown until data is loaded.
        measured: the times of the nodes; absent: they are estimated.

    Raises:
        BadConfigurationError: there are such dimensions, and no length.
        UserCodeError: the optimizer cannot be made from its configuration.
    """
    state_bytes, fixed = (
        ({}, 0) if optimizer is None else optimizer_state(optimizer, model.variables)
    )
    known = model_costs.of(model, state_bytes, fixed, length, optimizer_copies(optimizer))
    return choose.Subject(
        model=model,
        costs=known,
        times=measured or [costs.estimated(one, cluster.device) for one in known.nodes],
        cluster=cluster,
        shardings_of=shardings_of(model, optimizer),
    )


def optimizer_state(optimizer: Any, variables: Mapping[str, Any]) -> tuple[dict[str, int], int]:
    """Count what an optimizer of the same kind and configuration would hold.

    It is built on small stand-ins with as many dimensions as the weights have; each dimension of a
    slot is one of its weight's.

    Returns:
        Bytes of each variable that is trained, by key; and bytes that belong to none.

    Raises:
        UserCodeError: the optimizer cannot be made from its configuration.
    """
    known: dict[Any, collections.Counter[_Kind]] = {}
    fixed = _built(optimizer, ())
    bytes_by_key: dict[str, int] = {}
    for key, variable in variables.items():
        if not variable.trainable:
            continue
        label = variable.path if isinstance(optimizer, keras.optimizers.Muon) else ""
        kind = (len(variable.shape), variable.dtype, label)  # Muon goes by the names of weights
        if kind not in known:
            known[kind] = _built(optimizer, (variable,)) - fixed
        sizes = dict(zip(_SIZES, variable.shape, strict=False))
        bytes_by_key[key] = sum(
            math.prod(sizes.get(size, size) for size in slot) * graph.itemsize(dtype)
            for slot, dtype in known[kind].elements()
        )
    return bytes_by_key, sum(
        math.prod(slot) * graph.itemsize(dtype) for slot, dtype in fixed.elements()
    )


def optimizer_copies(optimizer: Any) -> float:
    """How many times the gradients are there besides, while an optimizer with slots updates.

    TensorFlow begins with the slots of all weights before it ends with those of the first. A
    gradient stays until its last slot is done. Measured on CPU for each of Keras' optimizers.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return 0.0 if isinstance(inner, _IN_TURN) else 1.0


def _built(optimizer: Any, like: Sequence[Any]) -> collections.Counter[_Kind]:
    """Shapes and types of an optimizer's variables, for stand-ins of some weights."""
    try:
        optimizer_copy = type(optimizer).from_config(optimizer.get_config())
    except (TypeError, ValueError) as error:
        raise errors.UserCodeError(
            f"The optimizer {type(optimizer).__name__} cannot be made again from its get_config "
            f"({error}), which training on a mesh needs: let get_config give what __init__ takes."
        ) from error
    optimizer_copy.build([_stand_in(one) for one in like])
    return collections.Counter((tuple(one.shape), one.dtype) for one in optimizer_copy.variables)


def _stand_in(variable: Any) -> Any:
    *scopes, name = variable.path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(
            "zeros", shape=_SIZES[: len(variable.shape)], dtype=variable.dtype, name=name
        )


def shardings_of(model: graph.Graph, optimizer: Any = None) -> choose.ShardingsOf:
    """Give the ways of a model's nodes on any mesh.

    They raise where a degree would divide nothing, where a layer cannot be split as the user chose,
    and where the optimizer cannot train parts.
    """

    def on(mesh: shape.Mesh) -> Sequence[costs.Sharding]:
        degrees = {axis: mesh.degree(axis) for axis in layout.AXES}
        if not model.sharding_overrides and all(degree == 1 for degree in degrees.values()):
            return [costs.REPLICATED] * len(model.nodes)
        assigned = assignment.assign(model, degrees)
        assigned.check()
        if optimizer is not None:
            elementwise.check_optimizer(optimizer, model.variables, assigned.variables)
        return [_sharding(assigned, choice) for choice in assigned.choices]

    return on


def _sharding(assigned: assignment.Assignment, choice: assignment.Choice) -> costs.Sharding:
    model, degrees = assigned.model, assigned.degrees
    variables = [shard.layout for shard in choice.split.variables.values()]
    divided = [lies.axes for lies in (*choice.split.gives.values(), *variables)]
    if choice.way == registry.REPLICATED and not choice.costs:
        return costs.REPLICATED
    return costs.Sharding(
        name=choice.way,
        compute=math.prod(1 / degrees.get(axis, 1) for axis in set[shape.Axis]().union(*divided)),
        kept=max(
            (_share(lies, model.tensors[one].shape) for one, lies in choice.split.gives.items()),
            default=1.0,
        ),
        variables={
            key: _share(assigned.variables[key].layout, model.variables[key].shape)
            for key in choice.node.variables
            if not assigned.variables[key].layout.is_whole
        },
        forward=_sent(choice, schedule.Work.FORWARD, degrees),
        backward=_sent(choice, schedule.Work.BACKWARD, degrees),
    )


def _share(lies: layout.Layout, dims: Sequence[int | None]) -> float:
    """The share of the rank that has most."""
    parts = zip(lies.largest(dims), dims, strict=True)
    return math.prod((part or 1) / (size or 1) for part, size in parts)


def _sent(
    choice: assignment.Choice, work: schedule.Work, degrees: Mapping[shape.Axis, int]
) -> tuple[int, float]:
    """How many messages a rank sends, and the bytes of an example in them."""
    costs = [(one, degrees.get(one.axis, 1)) for one in choice.costs if one.work is work]
    messages = sum(one.messages(ranks) for one, ranks in costs)
    return messages, sum(one.sent(1, ranks) for one, ranks in costs)
