"""Work that is traced once and called for each microbatch, forward and backward.

If a step repeats a stage's operations for each microbatch, its graph grows with their number. So do
the time and the memory that its start takes. TensorFlow's own gradient of a function does not serve
here: it replaces an absent gradient by zeros, which an optimizer takes for another thing. It also
hides which look-ups a sparse gradient comes from.
"""

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_MAX_COPIED = 128
"""The most elements of a constant that is copied; TensorFlow's own limit for eager tensors."""

SEPARATE = {"_noinline": True}
"""Keeps TensorFlow from writing the function out at each call."""

Pullback = Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]
"""Returns the gradients that follow from the gradients of some results."""


@dataclasses.dataclass(frozen=True, slots=True)
class Computation:
    """Results, and how gradients go back from some of them."""

    results: list[tf.Tensor]
    pullback: Pullback | None = None
    cotangents: Sequence[tf.TensorSpec] = ()
    """The gradients that the pullback takes."""


Compute = Callable[[Sequence[tf.Tensor]], Computation]


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionPullback:
    """A call of a backward pass."""

    function: Any
    captures: list[Any]
    """What the function captures, for this call."""
    varying: Sequence[int]
    """Positions of the captures that may differ between calls."""

    def __call__(self, cotangents: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The gradients of what the forward pass takes."""
        self.function.set_external_captures(self.captures)
        gradients: list[tf.Tensor] = self.function(list(cotangents))
        return gradients

    @property
    def residuals(self) -> list[tf.Tensor]:
        """The tensors of the forward pass that it takes."""
        return [self.captures[position] for position in self.varying]

    def with_residuals(self, residuals: Sequence[tf.Tensor]) -> "FunctionPullback":
        """A call that takes other tensors."""
        captures = list(self.captures)
        for position, residual in zip(self.varying, residuals, strict=True):
            captures[position] = residual
        return dataclasses.replace(self, captures=captures)


class MicrobatchFunctions:
    """A function for each size of the microbatches of a step."""

    def __init__(self, sizes: Sequence[Hashable], *, recomputes: bool = False) -> None:
        """Take what tells the microbatches apart that need functions of their own.

        If the backward pass recomputes, even a single microbatch needs a function. Otherwise
        TensorFlow may take the second computation for the first.
        """
        self._sizes = sizes
        self._recomputes = recomputes
        self._functions: dict[Hashable, Compute] = {}

    def call(
        self, microbatch: int, compute: Compute, arguments: Sequence[tf.Tensor]
    ) -> Computation:
        """Compute a microbatch: by a function if another one has its size, or if it recomputes."""
        size = self._sizes[microbatch]
        if self._sizes.count(size) == 1 and not self._recomputes:
            return compute(arguments)
        if size not in self._functions:
            self._functions[size] = MicrobatchFunction(compute, arguments)
        return self._functions[size](arguments)


class MicrobatchFunction:
    """Two functions in a graph: the forward pass, and the backward pass that takes its residuals.

    `compute` is traced for arguments of the shapes of `arguments`. Whatever differs between calls
    must be among the arguments.
    """

    def __init__(self, compute: Compute, arguments: Sequence[tf.Tensor]) -> None:
        self._backward: Any = None
        self._residuals: list[_Residual] = []

        def forward(arguments: list[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
            computation = compute(arguments)
            kept: list[tf.Tensor] = []
            if computation.pullback is not None:
                kept = self._trace_backward(computation.pullback, computation.cotangents, arguments)
            return computation.results, kept

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in arguments]
        self._forward = _trace(forward, specs)

    def __call__(self, arguments: Sequence[tf.Tensor]) -> Computation:
        """Call the forward pass; the pullback calls the backward pass."""
        results, kept = self._forward(list(arguments))
        if self._backward is None:
            return Computation(results)
        captures = [residual.find(arguments, kept) for residual in self._residuals]
        return Computation(results, FunctionPullback(self._backward, captures, self._varying))

    @property
    def _varying(self) -> list[int]:
        """Positions of the residuals that may differ between calls."""
        return [
            position
            for position, residual in enumerate(self._residuals)
            if residual.capture is None
        ]

    def _trace_backward(
        self,
        pullback: Pullback,
        cotangents: Sequence[tf.TensorSpec],
        arguments: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        """Trace the backward pass within the forward pass; returns what the latter has to keep."""
        graph = tf.compat.v1.get_default_graph()

        def backward(cotangents: list[tf.Tensor]) -> list[tf.Tensor]:
            _copy_constants(tf.compat.v1.get_default_graph())
            return pullback(cotangents)

        self._backward = _trace(backward, list(cotangents))
        positions = {tensor.ref(): position for position, tensor in enumerate(arguments)}
        captures = {inner.ref(): outer for outer, inner in graph.captures}
        kept: list[tf.Tensor] = []
        self._residuals = []
        for tensor in self._backward.captured_inputs:
            if not tf.is_symbolic_tensor(tensor):
                self._residuals.append(_Residual(capture=tensor))
            elif tensor.ref() in positions:
                self._residuals.append(_Residual(argument=positions[tensor.ref()]))
            elif tensor.ref() in captures:
                self._residuals.append(_Residual(capture=captures[tensor.ref()]))
            else:
                self._residuals.append(_Residual(kept=len(kept)))
                kept.append(tensor)
        return kept


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Residual:
    """Where a backward pass finds a tensor of the forward pass: one of three."""

    argument: int | None = None
    """Position among the arguments of the call."""
    kept: int | None = None
    """Position among what the forward pass has kept."""
    capture: Any = None
    """A tensor that is the same for all calls, such as the handle of a variable."""

    def find(self, arguments: Sequence[tf.Tensor], kept: Sequence[tf.Tensor]) -> Any:
        """Return the tensor for a call."""
        if self.argument is not None:
            return arguments[self.argument]
        return self.capture if self.kept is None else kept[self.kept]


def _trace(function: Callable[..., Any], specs: list[tf.TensorSpec]) -> Any:
    traced = tf.function(function, autograph=False, experimental_attributes=SEPARATE)
    return traced.get_concrete_function(specs)


def _copy_constants(graph: Any) -> None:
    """Let a graph copy small constants of the graph around it instead of taking them as inputs.

    Static shapes follow from constants, such as the permutation of a transposition.
    """
    capture = graph.capture
    copies: dict[Any, tf.Tensor | None] = {}

    def copy(tensor: tf.Tensor) -> tf.Tensor | None:
        value = tf.get_static_value(tensor)
        if value is None or np.size(value) > _MAX_COPIED:
            return None
        with graph.as_default(), tf.control_dependencies(None):
            return tf.constant(value, tensor.dtype)

    def capture_or_copy(tensor: Any, name: str | None = None, shape: Any = None) -> Any:
        if not tf.is_symbolic_tensor(tensor) or tensor.graph is graph:
            return capture(tensor, name, shape)
        if tensor.ref() not in copies:
            copies[tensor.ref()] = copy(tensor)
        copied = copies[tensor.ref()]
        return capture(tensor, name, shape) if copied is None else copied

    graph.capture = capture_or_copy
