"""What is planned: a recorded model with what it costs, on devices."""

from collections.abc import Sequence
from typing import Any

from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.planning import (
    choose,
    costs,
    hardware,
    layer_shardings,
    model_costs,
    optimizer_state,
)


def of(
    model: graph.Graph,
    optimizer: Any,
    cluster: hardware.Cluster,
    length: int | None = None,
    measured: Sequence[costs.NodeTime] | None = None,
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
    state_bytes, fixed = (
        ({}, 0) if optimizer is None else optimizer_state.of(optimizer, model.variables)
    )
    known = model_costs.of(model, state_bytes, fixed, length, optimizer_state.copies(optimizer))
    return choose.Subject(
        model=model,
        costs=known,
        times=measured or costs.estimated(known, cluster.device),
        cluster=cluster,
        shardings_of=layer_shardings.shardings_of(model, optimizer),
    )
