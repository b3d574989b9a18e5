"""Turns a Keras model into a graph by public API: each call that the model makes is one node.

A nested model is not one node but its own calls, so that a stage may end within it. Masks, which
Keras attaches to tensors, become tensors of the graph, and follow their tensors.
"""

import collections
import functools
from collections.abc import Mapping
from typing import Any

import keras

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import keys
from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.objective import checks, loss

SEED_PREFIX = "random/"
"""Prefix of the keys of seeds, which have their position in the model."""

_BATCH = 7919
"""Batch size on which a model is recorded: a prime that no other size is divisible by. So sizes
that are divisible by it grow with the batch."""


def record(model: Any) -> graph.Graph:
    """Return the graph of a Sequential or Functional model, built with or without its weights."""
    _check(model)
    with keras.StatelessScope(initialize_variables=False):
        return _Recorder(model).run()


def gathered(model: graph.Graph) -> frozenset[str]:
    """Keys of the weights that calls assign in training, such as moving statistics.

    They can have one copy only, unlike weights, whose gradients are added up.
    """
    called = [node.calls for node in model.nodes if node.kind is graph.NodeKind.LAYER]
    frozen = {
        id(weight)
        for layer in {id(layer): layer for root in called for layer in checks.layers(root)}.values()
        if not layer.trainable
        for weight in layer.weights
    }
    return frozenset(
        key
        for key, variable in model.variables.items()
        if not (variable.trainable or id(variable) in frozen or key.startswith(SEED_PREFIX))
    )


class _Recorder:
    """Walks a model on symbolic tensors; `_known` maps each to its tensor of the graph."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._nodes: list[graph.Node] = []
        self._tensors: list[graph.Tensor] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []
        """Keeps symbolic tensors alive, so that no id is reused."""
        self._masks: dict[int, Any] = {}
        """The symbolic mask of a symbolic tensor, by the number of the latter."""
        self._masked: set[int] = set()
        self._calls: collections.Counter[str] = collections.Counter()
        self._variables = keys.of_weights(model)
        known_ids = {id(variable) for variable in self._variables.values()}
        others = (variable for variable in model.variables if id(variable) not in known_ids)
        self._variables |= {
            f"{SEED_PREFIX}{index}": variable for index, variable in enumerate(others)
        }
        self._keys = {id(variable): key for key, variable in self._variables.items()}

    def run(self) -> graph.Graph:
        structure = _inputs(self._model)
        placeholders = keras.tree.map_structure(
            lambda element: _placeholder(element, (_BATCH, *element.shape[1:])), structure
        )
        for element in keras.tree.flatten(placeholders):
            self._number(element)
        symbolic_outputs = self._inside(self._model, placeholders, "")
        if isinstance(symbolic_outputs, (list, tuple)) and len(symbolic_outputs) == 1:
            symbolic_outputs = symbolic_outputs[0]  # as Keras returns it
        names = loss.names_of(self._model, symbolic_outputs)
        model_outputs = tuple(
            graph.Output(
                name,
                self._numbers[id(symbolic_output)],
                None if (mask := self._mask(symbolic_output)) is None else self._numbers[id(mask)],
            )
            for name, symbolic_output in loss.split(
                symbolic_outputs, names, "The model's output"
            ).items()
        )
        leaving = (
            number
            for model_output in model_outputs
            for number in (model_output.tensor, model_output.mask)
        )
        return graph.Graph(
            nodes=graph.needed(self._nodes, [number for number in leaving if number is not None]),
            tensors=tuple(self._tensors),
            input_names=tuple(keras_input.name for keras_input in keras.tree.flatten(structure)),
            outputs=model_outputs,
            input_structure=self._edges(placeholders),
            output_structure=self._edges(symbolic_outputs),
            variables=self._variables,
            masked=frozenset(self._masked),
        )

    def _inside(self, model: Any, placeholders: Any, path: str) -> Any:
        """Record the calls inside a model on its inputs; returns its symbolic outputs."""
        if isinstance(model, keras.Sequential):
            value = placeholders
            for layer in model.layers:
                value = self._call(path, layer, value)
            return value
        return keras.models.clone_model(
            model,
            input_tensors=placeholders,
            clone_function=lambda layer: layer,
            call_function=functools.partial(self._call, path),
        ).output

    def _nested(self, path: str, model: Any, inputs: Any, mask: Any) -> Any:
        """Record the calls inside a nested model; returns its outputs in the outer model."""
        structure = _inputs(model)
        outer = keras.tree.flatten(inputs)
        leaves = [
            _placeholder(here, there.shape)
            for here, there in zip(keras.tree.flatten(structure), outer, strict=True)
        ]
        placeholders = keras.tree.pack_sequence_as(structure, leaves)
        pairs = zip(leaves, outer, strict=True)
        inside = f"{path}{model.name}/"
        casts = [self._cast(inside, there, here.dtype) for here, there in pairs]
        numbers = self._alias(leaves, casts)
        masks = [None] * len(numbers) if mask is None else keras.tree.flatten(mask)
        outside = {number: self._masks.get(number) for number in numbers}
        for number, one in zip(numbers, masks, strict=True):
            self._set_mask(number, outside[number] if one is None else one)
        inner = keras.tree.flatten(self._inside(model, placeholders, inside))
        for number, one in outside.items():
            self._set_mask(number, one)
        result = model(inputs)
        self._alias(keras.tree.flatten(result), inner)
        return result

    def _cast(self, path: str, tensor: Any, dtype: str) -> Any:
        """Cast the argument of a model to the type of its input, as Keras does."""
        if tensor.dtype == dtype:
            return tensor
        result = keras.ops.cast(tensor, dtype)
        self._add(graph.NodeKind.OPERATION, path, keras.ops.cast, (tensor, dtype), {}, result)
        self._set_mask(self._numbers[id(result)], self._mask(tensor))
        return result

    def _call(self, path: str, operation: Any, *arguments: Any, **keywords: Any) -> Any:
        """Record one call, or those inside it; returns its symbolic outputs."""
        if not isinstance(operation, keras.layers.Layer):
            result = operation(*arguments, **keywords)
            self._add(graph.NodeKind.OPERATION, path, operation, arguments, keywords, result)
            return result
        if _is_graph(operation) and _fits(operation, arguments):
            return self._nested(path, operation, arguments[0], keywords.get("mask"))
        keywords.pop("training", None)
        result = operation(*arguments, **keywords)
        self._add(graph.NodeKind.LAYER, path, operation, arguments, keywords, result)
        first = arguments[0] if arguments else next(iter(keywords.values()))
        previous = keywords.get("mask")
        if previous is None:
            previous = keras.tree.map_structure(self._mask, first)
        masks = operation.compute_mask(first, previous) if operation.supports_masking else None
        leaves = keras.tree.flatten(masks)
        if any(leaf is not None and id(leaf) not in self._numbers for leaf in leaves):
            self._add(graph.NodeKind.MASK, path, operation, (first, previous), {}, masks)
        for output, mask in zip(keras.tree.flatten(result), leaves, strict=False):
            if mask is not None:
                self._set_mask(self._numbers[id(output)], mask)
        return result

    def _add(
        self,
        kind: graph.NodeKind,
        path: str,
        operation: Any,
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
        result: Any,
    ) -> None:
        name = (
            path
            + getattr(operation, "name", "cast")
            + ("/mask" if kind is graph.NodeKind.MASK else "")
        )
        self._calls[name] += 1
        structure = self._edges((arguments, dict(keywords)))
        edges = [edge for edge in keras.tree.flatten(structure) if isinstance(edge, graph.Edge)]
        tensors = list(dict.fromkeys(edge.tensor for edge in edges))
        is_layer = kind is graph.NodeKind.LAYER
        masks = {
            mask_number: self._numbers[id(self._masks[mask_number])]
            for mask_number in tensors
            if is_layer and mask_number in self._masks
        }
        variables = operation.variables if is_layer else ()
        node = graph.Node(
            kind=kind,
            name=name if self._calls[name] == 1 else f"{name}#{self._calls[name]}",
            calls=operation,
            arguments=structure[0],
            keywords=structure[1],
            masks=masks,
            inputs=tuple(dict.fromkeys([*tensors, *masks.values()])),
            outputs=tuple(self._number(result_leaf) for result_leaf in keras.tree.flatten(result)),
            variables=tuple(self._keys[id(variable)] for variable in variables),
        )
        self._nodes.append(node)

    def _number(self, symbolic: Any) -> int:
        number = len(self._tensors)
        if symbolic is None:  # a missing output, such as a mask of only one of several outputs
            self._tensors.append(graph.Tensor((), "none", batch=None))
            return number
        self._tensors.append(_tensor(symbolic))
        self._numbers[id(symbolic)] = number
        self._kept.append(symbolic)
        return number

    def _alias(self, new: list[Any], recorded: list[Any]) -> list[int]:
        """Map further symbolic tensors to recorded tensors; returns these."""
        numbers = [self._numbers[id(leaf)] for leaf in recorded]
        self._numbers |= {id(leaf): number for leaf, number in zip(new, numbers, strict=True)}
        self._kept += new
        return numbers

    def _edges(self, value: Any) -> Any:
        return keras.tree.map_structure(
            lambda leaf: graph.Edge(self._numbers[id(leaf)]) if _is_tensor(leaf) else leaf, value
        )

    def _set_mask(self, tensor: int, mask: Any) -> None:
        if mask is None:
            self._masks.pop(tensor, None)
        else:
            self._masks[tensor] = mask
            self._masked.add(tensor)

    def _mask(self, symbolic: Any) -> Any:
        """The symbolic mask of a value, if it is a symbolic tensor with a mask."""
        return self._masks.get(self._numbers[id(symbolic)]) if _is_tensor(symbolic) else None


@functools.cache
def _functional() -> Any:
    """The class of Functional models, for which Keras has no public name."""
    both = keras.Input((1,), name="tfparallel_probe")
    return type(keras.Model(both, both, name="tfparallel_probe"))


def _is_graph(layer: Any) -> bool:
    """Whether a layer is a model that does nothing but the calls in its graph."""
    if isinstance(layer, keras.Sequential):
        return type(layer).call is keras.Sequential.call and layer.built and bool(layer.layers)
    return isinstance(layer, _functional()) and type(layer).call is _functional().call


def _fits(model: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether a nested model takes these tensors as they are, so that its calls can be recorded."""
    if len(arguments) != 1:
        return False
    inputs, argument = _inputs(model), arguments[0]
    if isinstance(inputs, dict) != isinstance(argument, dict):
        return False
    pairs = zip(keras.tree.flatten(inputs), keras.tree.flatten(argument), strict=False)
    return all(_is_tensor(there) and len(here.shape) == len(there.shape) for here, there in pairs)


def _check(model: Any) -> None:
    if isinstance(model, keras.Sequential) and not model.built:
        raise errors.UserCodeError(
            f"The model {model.name} does not know the shape of its input, without which it cannot "
            "be split. Let keras.Input(shape) be the first thing in keras.Sequential.",
            function="build_model",
        )
    if not _is_graph(model):
        raise errors.UserCodeError(
            f"{type(model).__name__} computes its outputs in a method, so there is no graph of "
            "layers that could be split. Build a keras.Sequential or a "
            "keras.Model(inputs, outputs), or use the strategy MultiWorkerMirrored.",
            function="build_model",
        )


def _inputs(model: Any) -> Any:
    """The symbolic inputs of a model, nested as it takes them."""
    return model.input if not isinstance(model, keras.Sequential) else model.inputs[0]


def _placeholder(tensor: Any, outer: tuple[int | None, ...]) -> Any:
    """An input of a model, with the shape that the model, or else its caller, knows."""
    sizes = (here or there for here, there in zip(tensor.shape[1:], outer[1:], strict=True))
    return keras.Input(batch_shape=(outer[0], *sizes), dtype=tensor.dtype, name=tensor.name)


def _tensor(symbolic: Any) -> graph.Tensor:
    """The description of a tensor, from its shape for the recorded batch size."""
    sizes = tuple(symbolic.shape)
    grow = [index for index, size in enumerate(sizes) if size and size % _BATCH == 0]
    shape = tuple(None if index in grow else size for index, size in enumerate(sizes))
    if len(grow) == 1:
        return graph.Tensor(shape, symbolic.dtype, grow[0], sizes[grow[0]] // _BATCH)
    # If a layer does not show the batch dimension, it is assumed to be the first.
    is_batch = not grow and sizes[:1] == (None,)
    return graph.Tensor(shape, symbolic.dtype, 0 if is_batch else None)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, keras.KerasTensor)
