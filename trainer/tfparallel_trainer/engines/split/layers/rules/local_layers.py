"""Lets Keras compute a rank's part: by the layer itself, or by a smaller layer of its kind."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfparallel_trainer.engines.split.layers import layout
from tfparallel_trainer.engines.split.layers.rules import registry
from tfparallel_trainer.engines.split.model import graph, interpreter, recording

_SPREAD = 715_827_883
"""Distance between the seeds of two parts; far larger than other distances of seeds."""

_NOT_COPIED = ("_initializer", "_regularizer", "_constraint")
"""Endings of arguments that a smaller layer omits: it never has weights of its own."""


def call_layer(local: registry.Local, drawn: layout.Layout | None = None) -> Sequence[Any]:
    """Call the node's layer with full weights and no masks; random numbers have layout `drawn`."""
    node = dataclasses.replace(local.node, masks={})
    return _run(local, local.model, node, local.variables, drawn)


class LocalLayerRule(registry.Rule):
    """A rule by which the node's own layer or operation computes the rank's part."""

    def compute(self, local: registry.Local) -> Sequence[Any]:
        return call_layer(local)


def smaller(
    local: registry.Local,
    config: Mapping[str, Any],
    variables: Mapping[str, Any],
    drawn: layout.Layout | None = None,
) -> Sequence[Any]:
    """Call a layer of the same kind that is as large as the rank's part.

    Its variables have values by the keys of the node's layer; random numbers have layout `drawn`.
    """
    full_config = {
        name: value
        for name, value in local.layer.get_config().items()
        if not name.endswith(_NOT_COPIED)
    }
    with keras.StatelessScope(initialize_variables=False):
        layer = type(local.layer).from_config({**full_config, **config})
        arguments, keywords = keras.tree.map_structure(
            lambda edge: _placeholder(local, edge.tensor) if isinstance(edge, graph.Edge) else edge,
            (local.node.arguments, dict(local.node.keywords)),
        )
        layer(*arguments, **keywords)
    node = dataclasses.replace(local.node, calls=layer)
    keys = [
        key
        for layer_variable in local.layer.variables
        if (key := local.key(layer_variable)) in variables
    ]
    variables_by_key = dict(zip(keys, layer.variables, strict=True))
    model = dataclasses.replace(local.model, variables=variables_by_key)
    return _run(local, model, node, {key: variables[key] for key in keys}, drawn)


def _run(
    local: registry.Local,
    model: graph.Graph,
    node: graph.Node,
    variables: Mapping[str, Any],
    drawn: layout.Layout | None,
) -> Sequence[Any]:
    seed = 0 if drawn is None else _seed_offset(local, drawn)
    seed_offset = np.array([seed, 0])
    values = {
        key: value + seed_offset if seed and key.startswith(recording.SEED_PREFIX) else value
        for key, value in variables.items()
    }
    part = interpreter.run_nodes(model, (node,), local.tensors, values, local.training)
    for key, value in part.changed.items():
        # The seed that all ranks share advances as in the unsplit layer.
        is_seed = seed and key.startswith(recording.SEED_PREFIX)
        local.changed[key] = value - seed_offset if is_seed else value
    return [part.tensors[number] for number in node.outputs]


def _seed_offset(local: registry.Local, tensor_layout: layout.Layout) -> int:
    """The offset of a rank's seed, so that each part of a tensor has its own seed."""
    part = 0
    for cut in tensor_layout.cuts:
        if cut is not None:
            part = part * len(cut.sizes) + local.groups[cut.axis].index
    return part * _SPREAD


def _placeholder(local: registry.Local, number: int) -> Any:
    tensor = local.tensors[number]
    return None if tensor is None else keras.KerasTensor(tensor.shape, str(tensor.dtype.name))
