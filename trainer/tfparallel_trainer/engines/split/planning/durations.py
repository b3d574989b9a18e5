"""How long a rank takes for its part of each node, as vectors over all nodes. Pure."""

from collections.abc import Sequence

import numpy as np

from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.planning import costs, cuts, hardware, search_space

_ADDING = 3.0
"""Bytes read and written for each byte of a gradient that is added to another one."""


class Durations:
    """Of one model, with one way for each node."""

    def __init__(
        self,
        model: graph.Graph,
        known: costs.Costs,
        node_times: Sequence[costs.NodeTime],
        chosen: Sequence[costs.Sharding],
    ) -> None:
        self._forward = np.array([(one.forward.fixed, one.forward.each) for one in node_times]).T
        self._backward = np.array([(one.backward.fixed, one.backward.each) for one in node_times]).T
        self._compute = np.array([one.compute for one in chosen])
        self._ahead = np.array([(one.forward_messages, one.forward_bytes) for one in chosen]).T
        self._back = np.array([(one.backward_messages, one.backward_bytes) for one in chosen]).T
        self._gradients = np.array(
            [
                cost.gradient_bytes * _share(node, sharding)
                for node, cost, sharding in zip(model.nodes, known.nodes, chosen, strict=True)
            ]
        )

    def of(
        self, setting: search_space.Setting, cluster: hardware.Cluster
    ) -> tuple[cuts.Vector, cuts.Vector]:
        """Seconds of each node for one microbatch, forward and backward, without messages between
        stages.
        """
        link = hardware.link_within(setting.mesh, cluster)
        scaled = setting.examples * self._compute
        sent = np.array([link.latency, setting.examples / link.bandwidth])
        # A microbatch adds its gradients to those before it.
        added = _ADDING * self._gradients * (1 - 1 / setting.microbatches)
        forward = self._forward[0] + self._forward[1] * scaled + sent @ self._ahead
        backward = self._backward[0] + self._backward[1] * scaled + sent @ self._back
        return forward, backward + added / cluster.device.update.bandwidth


def _share(node: graph.Node, sharding: costs.Sharding) -> float:
    """A rank's share of the variables of a node."""
    return max((sharding.variables.get(key, 1.0) for key in node.variables), default=1.0)
