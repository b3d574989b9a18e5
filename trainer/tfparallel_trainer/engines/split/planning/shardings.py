"""The cheapest shardings of a model's nodes on a mesh, and what they cost a rank."""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import communication, elementwise, layout
from tfparallel_trainer.engines.split.layers.candidates import Choice
from tfparallel_trainer.engines.split.layers.rules import registry
from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.pipeline import schedule
from tfparallel_trainer.engines.split.planning import hardware, sharding_search
from tfparallel_trainer.engines.split.planning.costs import (
    REPLICATED,
    Line,
    NodeTime,
    Sent,
    Sharding,
    ShardingsOf,
)

_Degrees = Mapping[shape.Axis, int]


def shardings_of(
    model: graph.Graph,
    times: Sequence[NodeTime],
    cluster: hardware.DeviceCluster,
    optimizer: Any = None,
) -> ShardingsOf:
    """Give the cheapest shardings of a model's nodes on any mesh.

    They raise where a degree would divide nothing, where a layer cannot be split as the user chose,
    and where the optimizer cannot train parts.
    """
    whole = [REPLICATED] * len(model.nodes)

    @functools.cache
    def search(spatial: int, tensor: int, link: hardware.Link) -> list[sharding_search.Path]:
        degrees = {shape.Axis.SPATIAL: spatial, shape.Axis.TENSOR: tensor}
        return sharding_search.search(model, degrees, pricing(model, degrees, times, link))

    @functools.cache
    def of_path(path: sharding_search.Path, spatial: int, tensor: int) -> list[Sharding]:
        degrees = {shape.Axis.SPATIAL: spatial, shape.Axis.TENSOR: tensor}
        choices = path.choices()
        check(choices, degrees)
        if optimizer is not None:
            shards = {key: shard for choice in choices for key, shard in choice.variables.items()}
            variables = {key: model.variables[key] for key in shards}
            elementwise.check_optimizer(optimizer, variables, shards)
        return [sharding_of(model, degrees, choice) for choice in choices]

    def on(mesh: shape.MeshShape, examples: int) -> Sequence[Sharding]:
        if not model.sharding_overrides and mesh.spatial == mesh.tensor == 1:
            return whole
        paths = search(mesh.spatial, mesh.tensor, hardware.link_within(mesh, cluster))
        path = min(paths, key=lambda path: path.seconds(examples))
        return of_path(path, mesh.spatial, mesh.tensor)

    return on


def pricing(
    model: graph.Graph, degrees: _Degrees, times: Sequence[NodeTime], link: hardware.Link
) -> sharding_search.Price:
    """Tell what a choice costs as `cost_tables` does: a rank's share of the work, and messages."""
    seconds = {id(node): time.each for node, time in zip(model.nodes, times, strict=True)}

    def price(choice: Choice) -> Line:
        sharding = sharding_of(model, degrees, choice)
        both = (sharding.forward, sharding.backward)
        messages = sum(sent.messages for sent in both)
        fixed_bytes = sum(sent.fixed_bytes for sent in both)
        bytes_of_example = sum(sent.example_bytes for sent in both)
        return Line(
            messages * link.latency + fixed_bytes / link.bandwidth,
            sharding.compute * seconds[id(choice.node)] + bytes_of_example / link.bandwidth,
        )

    return price


def sharding_of(model: graph.Graph, degrees: _Degrees, choice: Choice) -> Sharding:
    """What a choice means for a rank."""
    costs = (*choice.costs, *choice.for_loss)
    if choice.sharding == registry.REPLICATED and not costs:
        return REPLICATED
    shards = {key: shard.layout for key, shard in choice.variables.items()}
    divided = [
        tensor_layout.axes for tensor_layout in (*choice.split.gives.values(), *shards.values())
    ]
    return Sharding(
        name=choice.sharding,
        compute=math.prod(1 / degrees.get(axis, 1) for axis in set[shape.Axis]().union(*divided)),
        kept=max(
            (
                _share(tensor_layout, model.tensors[number].shape)
                for number, tensor_layout in choice.split.gives.items()
            ),
            default=1.0,
        ),
        variables={
            key: _share(shard_layout, model.variables[key].shape)
            for key, shard_layout in shards.items()
            if not shard_layout.is_whole
        },
        forward=_sent(costs, schedule.Pass.FORWARD, degrees),
        backward=_sent(costs, schedule.Pass.BACKWARD, degrees),
    )


def _share(tensor_layout: layout.Layout, dims: Sequence[int | None]) -> float:
    """The share of the rank that has most."""
    parts = zip(tensor_layout.largest(dims), dims, strict=True)
    return math.prod((part or 1) / (size or 1) for part, size in parts)


def _sent(costs: Iterable[communication.Traffic], work: schedule.Pass, degrees: _Degrees) -> Sent:
    transfers = [
        (traffic, degrees.get(traffic.axis, 1)) for traffic in costs if traffic.work is work
    ]
    fixed_bytes = sum(traffic.sent(0, ranks) for traffic, ranks in transfers)
    growing = [
        (traffic.sent(traffic.parts, ranks) - traffic.sent(0, ranks)) / traffic.parts
        for traffic, ranks in transfers
    ]
    return Sent(
        messages=sum(traffic.messages(ranks) for traffic, ranks in transfers),
        fixed_bytes=fixed_bytes,
        example_bytes=sum(growing),
    )


def check(choices: Sequence[Choice], degrees: _Degrees) -> None:
    """Refuse (BadConfigurationError) an axis with several ranks that divides nothing."""
    used = {
        axis
        for choice in choices
        for tensor_layout in (*choice.split.wants.values(), *choice.split.gives.values())
        for axis in tensor_layout.axes
    }
    for choice in choices:
        for shard in choice.variables.values():
            used |= shard.summed | shard.layout.axes
    for axis, degree in degrees.items():
        if degree > 1 and axis not in used:
            reasons = [choice.why for choice in choices if f"mesh.{axis}" in choice.why]
            reasons += [
                f"{choice.node.name}: {choice.why}"
                for choice in choices
                if choice.why and choice.node.variables
            ]
            reason = f" ({reasons[0]})" if reasons else ""
            raise errors.BadConfigurationError(
                f"mesh.{axis} is {degree}, but no layer of the model can be divided over it"
                f"{reason}: give 1."
            )
