"""Ways in which the ranks of a stage share one node, as values that rules fill. Pure."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How a rank's part of a node differs from the whole, for one replica of the model."""

    name: str = "replicated"
    compute: float = 1.0
    """Its share of the operations."""
    kept: float = 1.0
    """Its share of the output's bytes."""
    variables: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Its shares of the bytes of variables that are cut, by key."""
    forward_bytes: float = 0.0
    """Bytes of an example that it sends to its group forward, resharding included."""
    forward_messages: int = 0
    """Messages, one after the other, that these bytes travel in."""
    backward_bytes: float = 0.0
    """The same backward."""
    backward_messages: int = 0
    """The same backward."""


REPLICATED = Sharding()
"""Every rank does all of it: what a node without a rule does."""
