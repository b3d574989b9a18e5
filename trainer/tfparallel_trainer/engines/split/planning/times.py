"""How long nodes take, as lines over the number of examples: from shapes, or measured. Pure."""

import dataclasses
from collections.abc import Sequence

from tfparallel_trainer.engines.split.planning import costs, hardware


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """Seconds of so many examples."""

    fixed: float
    each: float


@dataclasses.dataclass(frozen=True, slots=True)
class NodeTime:
    """Of one node, on one device that has all of it."""

    forward: Line
    backward: Line

    @property
    def each(self) -> float:
        """Both directions for one example."""
        return self.forward.each + self.backward.each


def estimated(known: costs.Costs, device: hardware.Device) -> tuple[NodeTime, ...]:
    """Say how long each node takes by the operations and bytes that it needs."""
    return tuple(_estimated(node, device) for node in known.nodes)


def _estimated(node: costs.NodeCost, device: hardware.Device) -> NodeTime:
    fixed = device.call_seconds + node.weight_bytes / device.bandwidth
    each = max(node.flops / device.flops, node.tensor_bytes / device.bandwidth)
    return NodeTime(Line(fixed, each), Line(node.backward * fixed, node.backward * each))


def weights(node_times: Sequence[NodeTime]) -> list[float]:
    """The costs of the nodes relative to each other, to balance by."""
    return [one.each for one in node_times]
