"""All rules for a node: those of users, then those built in."""

import functools
import itertools
from collections.abc import Mapping
from typing import Any

from tfparallel_trainer.engines.split.layers.rules import (
    attention,
    convolution,
    dense,
    embedding,
    examples,
    normalisation,
    pooling,
    propagation,
    registry,
    spatial_convolution,
)
from tfparallel_trainer.engines.split.model import graph, operations

_TABLES: tuple[registry.Rules, ...] = (
    dense.RULES,
    embedding.RULES,
    attention.RULES,
    convolution.RULES,
    spatial_convolution.RULES,
    pooling.RULES,
    normalisation.RULES,
    propagation.RULES,
    examples.RULES,
)


def rules_of(node: graph.Node) -> Mapping[str, registry.Rule]:
    """Return the rules for a node by sharding, in the order of preference; a mask has none."""
    rules: dict[str, registry.Rule] = {}
    built_in: tuple[registry.Rule, ...] = ()
    if node.kind is graph.NodeKind.LAYER:
        kind: Any = type(node.calls)  # mypy does not take a type for hashable
        rules |= registry.of_users(kind)
        built_in = _of_layer(embedding.kind_of(kind))
    elif node.kind is graph.NodeKind.OPERATION:
        built_in = propagation.OPERATIONS.get(operations.name_of(node.calls), ())
    for rule in built_in:
        rules.setdefault(rule.sharding, rule)
    return rules


@functools.cache
def _of_layer(kind: Any) -> tuple[registry.Rule, ...]:
    return tuple(
        rule
        for names, rules in itertools.chain.from_iterable(table.items() for table in _TABLES)
        if kind in operations.layers(names)
        for rule in rules
    )
