"""A random job as plain values: a model, its training and the processes that train it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

Arguments = Mapping[str, str]
"""Python expressions by the name of the argument."""


@dataclasses.dataclass(frozen=True, slots=True)
class Construction:
    """An object, as Python constructs it."""

    kind: str
    """The class, such as keras.layers.Dense, or one of models/random_parts.py."""
    required: Arguments = dataclasses.field(default_factory=dict)
    options: Arguments = dataclasses.field(default_factory=dict)
    """Arguments that can be left out."""
    is_call: bool = True
    """False for a function, which is only named."""

    def text(self, **more: str) -> str:
        """Return the expression; `more` are further arguments."""
        if not self.is_call:
            return self.kind
        arguments = {**self.required, **self.options, **more}
        return f"{self.kind}({', '.join(f'{name}={value}' for name, value in arguments.items())})"

    def without(self, option: str) -> "Construction":
        """Return the same object without an option."""
        options = {name: value for name, value in self.options.items() if name != option}
        return dataclasses.replace(self, options=options)


@dataclasses.dataclass(frozen=True, slots=True)
class Input:
    """An input of the model and its values."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    values: str
    """An expression of `random` and EXAMPLES."""


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A call of a layer on tensors; its name is that of its tensor."""

    name: str
    layer: Construction
    inputs: tuple[str, ...]
    call: str = "{layer}({0})"
    """The call, with places for the inputs."""
    shared: str = ""
    """The node whose layer this one calls again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """An output with its loss and targets."""

    node: str
    loss: Construction | None
    targets: str
    """An expression of `random` and EXAMPLES."""
    loss_weight: float | None = None
    sample_weight: str = ""
    """An expression of `random` and EXAMPLES; empty for none."""
    weight_shape: str = "EXAMPLES"
    """What weights of all examples have as their shape."""
    metrics: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Training:
    """How the model is trained."""

    optimizer: Construction
    optimizer_calls: tuple[str, ...] = ()
    """Calls of the optimizer before `compile`, such as exclude_from_weight_decay."""
    callbacks: tuple[Construction, ...] = ()
    examples: int = 20
    batch: int = 8
    epochs: int = 2
    seed: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """A model file."""

    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    training: Training

    @property
    def has_batch_normalization(self) -> bool:
        """Whether a layer normalises by the batch."""
        return any(node.layer.kind == "keras.layers.BatchNormalization" for node in self.nodes)


@dataclasses.dataclass(frozen=True, slots=True)
class JobLayout:
    """A strategy, and the processes that follow it."""

    strategy: str
    processes: int = 1
    devices: int = 1
    mesh: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        axes = ", ".join(f"{axis} {degree}" for axis, degree in (self.mesh or {}).items())
        name = f"{self.strategy} {axes}" if axes else self.strategy
        return f"{name} on {self.processes}x{self.devices}"

    @property
    def divisor(self) -> int:
        """What the batch must be divisible by."""
        mesh = self.mesh or {}
        return int(mesh.get("data", 1)) * int(mesh.get("microbatches", 1))

    @property
    def batch_ranks(self) -> int:
        """How many ranks share a batch."""
        if self.mesh is not None:
            return int(self.mesh.get("data", 1))
        return self.processes * self.devices


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """A model and how it is trained."""

    model: Model
    layout: JobLayout
