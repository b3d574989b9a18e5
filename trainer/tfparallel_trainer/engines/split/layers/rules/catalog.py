"""All rules that there are for a node: those of users, then those built in."""

import functools
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from tfparallel_trainer.engines.split.layers.rules import (
    attention,
    borders,
    convolution,
    dense,
    dropout,
    einsum,
    embedding,
    examples,
    images,
    normalisation,
    places,
    pooling,
    propagation,
    registry,
)
from tfparallel_trainer.engines.split.model import graph, operations

MODULES: Sequence[ModuleType] = (
    dense,
    einsum,
    embedding,
    attention,
    convolution,
    images,
    pooling,
    borders,
    normalisation,
    places,
    propagation,
    dropout,
    examples,
)
"""Each has its `RULES` by class of layer, or `OPERATIONS` by name of an operation, or both."""


def rules_of(node: graph.Node) -> Mapping[str, registry.Rule]:
    """The rules for a node by way, in the order of preference; a mask has none."""
    rules: dict[str, registry.Rule] = {}
    if node.kind is graph.Kind.LAYER:
        kind: Any = type(node.calls)  # mypy does not take a type for hashable
        rules |= registry.of_users(kind)
        built_in = _built_in("RULES", embedding.kind_of(kind))
    elif node.kind is graph.Kind.OPERATION:
        built_in = _built_in("OPERATIONS", operations.name_of(node.calls))
    else:
        built_in = ()
    for one in built_in:
        rules.setdefault(one.way, one)
    return rules


@functools.cache
def _built_in(kind: str, of: Any) -> tuple[registry.Rule, ...]:
    """The rules of all modules for a class of layers, or for the name of an operation."""
    return tuple(one for module in MODULES for one in getattr(module, kind, {}).get(of, ()))
