"""What is planned: a recorded model with what it costs, on devices."""

from collections.abc import Sequence
from typing import Any

from tfparallel_trainer.split.model import graph
from tfparallel_trainer.split.planning import assigned, choose, devices, model_costs, slots, times


def of(
    model: graph.Graph,
    optimizer: Any,
    cluster: devices.Cluster,
    length: int | None = None,
    measured: Sequence[times.NodeTime] | None = None,
) -> choose.Subject:
    """Put together what the planner asks for.

    Args:
        model: the graph of a model without weights.
        optimizer: the one that the user compiled it with; None: nothing of it is counted.
        cluster: the devices.
        length: stands for dimensions that only the data tells.
        measured: the times of the nodes; absent: they are estimated.

    Raises:
        BadConfigurationError: there are such dimensions, and no length.
        UserCodeError: the optimizer cannot be made from its configuration.
    """
    state_bytes, fixed = ({}, 0) if optimizer is None else slots.of(optimizer, model.variables)
    known = model_costs.of(model, state_bytes, fixed, length, slots.copies(optimizer))
    return choose.Subject(
        model=model,
        costs=known,
        times=measured or times.estimated(known, cluster.device),
        cluster=cluster,
        shardings_of=assigned.shardings_of(model, optimizer),
    )
