"""A model as a value: nodes in an order in which they can run, and the tensors between them.

A tensor is identified by a number. This module neither computes nor knows Keras; the callable of a
node is opaque.
"""

import dataclasses
import enum
import functools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

_TYPE_BITS = {"bool": 8, "none": 0}


class NodeKind(enum.StrEnum):
    """The kind of callable of a node."""

    LAYER = "layer"
    """A layer; gets `training` as well."""
    OPERATION = "operation"
    """An operation of `keras.ops`."""
    MASK = "mask"
    """`compute_mask` of a layer, on the layer's first argument and that one's mask."""


@dataclasses.dataclass(frozen=True, slots=True)
class Edge:
    """A tensor's position among the arguments of a node."""

    tensor: int


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """The static description of a tensor."""

    shape: tuple[int | None, ...]
    """None: the batch, or a size that depends on the data."""
    dtype: str
    batch: int | None = 0
    """The dimension that grows with the batch. None: no single one does."""
    rows: int = 1
    """Rows of each example in that dimension: several if a layer turned windows into examples."""

    def sized(self, examples: int) -> tuple[int | None, ...]:
        """The shape for a number of examples; None: a size that depends on the data."""
        return tuple(
            self.rows * examples if index == self.batch else size
            for index, size in enumerate(self.shape)
        )

    @property
    def rows_of_example(self) -> int:
        """Number of rows of an example in the tensor."""
        return 0 if self.batch is None else self.rows

    @property
    def is_real(self) -> bool:
        """Whether it may have a gradient; masks and indices have none."""
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
    """Arguments of the call: nested tuples, lists and dictionaries, with edges as leaves."""
    keywords: Mapping[str, Any]
    masks: Mapping[int, int]
    """Masks of the tensors in a layer's arguments."""
    inputs: tuple[int, ...]
    """The tensors in `arguments`, `keywords` and `masks`, each once."""
    outputs: tuple[int, ...]
    """The tensors that the call returns, from left to right."""
    variables: tuple[str, ...]
    """Keys of all variables that the call reads."""

    @property
    def operands(self) -> tuple[int, ...]:
        """The tensors in `inputs` but for the masks."""
        return tuple(number for number in self.inputs if number not in self.masks.values())


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """An output of the model."""

    name: str
    """As Keras names it to the loss and the metrics."""
    tensor: int
    mask: int | None
    """Its mask, if it has one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A model; its first tensors are the model's inputs."""

    nodes: tuple[Node, ...]
    tensors: tuple[Tensor, ...]
    input_names: tuple[str, ...]
    outputs: tuple[Output, ...]
    input_structure: Any
    """Edges, nested as the model's inputs."""
    output_structure: Any
    """Edges, nested as the model's outputs."""
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
        """The output tensors of the model, masks included."""
        for output in self.outputs:
            yield output.tensor
            if output.mask is not None:
                yield output.mask


def with_gradient(model: Graph) -> frozenset[int]:
    """The tensors that have a gradient: computed, directly or not, from trained weights."""
    tensors: set[int] = set()
    for node in model.nodes:
        learns = any(model.variables[key].trainable for key in node.variables)
        if learns or tensors.intersection(node.inputs):
            tensors.update(number for number in node.outputs if model.tensors[number].is_real)
    return frozenset(tensors)


def needed(nodes: Collection[Node], targets: Collection[int]) -> tuple[Node, ...]:
    """The nodes that some tensors depend on, in the same order."""
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
