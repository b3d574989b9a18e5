"""A model as a value: nodes in an order in which they can run, and the tensors between them.

A tensor is a number here. Nothing here computes or knows Keras; what a node calls is opaque.
"""

import dataclasses
import enum
import functools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

_TYPE_BITS = {"bool": 8, "none": 0}


class NodeKind(enum.StrEnum):
    """What a node calls."""

    LAYER = "layer"
    """A layer; gets `training` as well."""
    OPERATION = "operation"
    """An operation of `keras.ops`."""
    MASK = "mask"
    """`compute_mask` of a layer, on the layer's first argument and that one's mask."""


@dataclasses.dataclass(frozen=True, slots=True)
class Edge:
    """The place of a tensor among the arguments of a node."""

    tensor: int


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """What is known of a tensor before it is computed."""

    shape: tuple[int | None, ...]
    """None is the batch, or what only the data tells."""
    dtype: str
    batch: int | None = 0
    """The dimension that grows with the batch; None if no single one does."""
    rows: int = 1
    """How many rows of that dimension each example has: several where windows became examples."""

    def sized(self, examples: int) -> tuple[int | None, ...]:
        """The shape for a number of examples; None is what only the data tells."""
        return tuple(
            self.rows * examples if index == self.batch else size
            for index, size in enumerate(self.shape)
        )

    @property
    def rows_of_example(self) -> int:
        """How many rows an example adds to the tensor."""
        return 0 if self.batch is None else self.rows

    @property
    def is_real(self) -> bool:
        """Whether it has a gradient; masks and indices have none."""
        return "float" in self.dtype


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One call of a layer or an operation."""

    kind: NodeKind
    name: str
    """Names of the nested models and of the layer, and which of its calls: encoder/dense#2."""
    calls: Any
    """The layer or operation."""
    arguments: tuple[Any, ...]
    """Nested tuples, lists and dictionaries with edges at their ends, as the call takes them."""
    keywords: Mapping[str, Any]
    masks: Mapping[int, int]
    """For tensors in the arguments of a layer the masks that it finds on them."""
    inputs: tuple[int, ...]
    """The tensors in `arguments`, `keywords` and `masks`, each once."""
    outputs: tuple[int, ...]
    """The tensors that the call gives, from left to right."""
    variables: tuple[str, ...]
    """Keys of all variables that the call reads."""

    @property
    def operands(self) -> tuple[int, ...]:
        """The tensors in `inputs` but for the masks."""
        return tuple(number for number in self.inputs if number not in self.masks.values())


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """What the model gives."""

    name: str
    """As Keras names it to the loss and the metrics."""
    tensor: int
    mask: int | None
    """The tensor that says which places count, when there is one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A model; its first tensors are the model's inputs."""

    nodes: tuple[Node, ...]
    tensors: tuple[Tensor, ...]
    input_names: tuple[str, ...]
    outputs: tuple[Output, ...]
    input_structure: Any
    """Edges, nested as the model takes its inputs."""
    output_structure: Any
    """Edges, nested as the model gives its outputs."""
    variables: Mapping[str, Any]
    """The variables of the model by key: weights as in a checkpoint, and seeds."""
    masked: frozenset[int] = frozenset()
    """The tensors that have a mask, which is a tensor of the graph."""
    sharding_overrides: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The sharding that the user chose for a layer or a node, by its name."""

    @property
    def inputs(self) -> range:
        """The tensors that come from outside."""
        return range(len(self.input_names))

    def output_tensors(self) -> Iterator[int]:
        """The tensors that leave the model, masks among them."""
        for output in self.outputs:
            yield output.tensor
            if output.mask is not None:
                yield output.mask


def with_gradient(model: Graph) -> frozenset[int]:
    """The tensors that a gradient comes back to: made, directly or not, with trained weights."""
    tensors: set[int] = set()
    for node in model.nodes:
        learns = any(model.variables[key].trainable for key in node.variables)
        if learns or tensors.intersection(node.inputs):
            tensors.update(number for number in node.outputs if model.tensors[number].is_real)
    return frozenset(tensors)


def needed(nodes: Collection[Node], targets: Collection[int]) -> tuple[Node, ...]:
    """Those of the nodes that some tensors depend on, in the same order."""
    open_tensors = set(targets)
    kept: list[Node] = []
    for node in reversed(tuple(nodes)):
        if open_tensors.intersection(node.outputs):
            open_tensors.update(node.inputs)
            kept.append(node)
    return tuple(reversed(kept))


@functools.cache
def itemsize(dtype: str) -> int:
    """Bytes of an element, by its type as Keras names it; 8 where the name tells no size."""
    if dtype in _TYPE_BITS:
        return _TYPE_BITS[dtype] // 8
    digits = "".join(filter(str.isdigit, dtype.partition("_")[0]))
    return -(-int(digits or 64) // 8)
