"""What each node of a model costs, from its layers and shapes alone. Nothing runs."""

import math
from collections.abc import Mapping
from typing import Any

import keras

from tfparallel_trainer import errors
from tfparallel_trainer.engines.split.model import graph, recording
from tfparallel_trainer.engines.split.planning import activation_memory, costs, flops


def estimate_costs(
    model: graph.Graph,
    slots: Mapping[str, int],
    fixed_slots: int = 0,
    length: int | None = None,
    copies: float = 1.0,
    loss: Any = None,
) -> costs.Costs:
    """Say what a model costs; a length that is missing is a BadConfigurationError.

    Args:
        slots: bytes of optimizer slots of each variable that is trained, by key.
        length: value for dimensions that are unknown until data is loaded.
        copies: of the gradients while the optimizer updates, as `planner.optimizer_copies` tells.
        loss: what the model is compiled with; None: no labels are counted.
    """
    measures = _Measures(model, length)
    backward = (node for node in model.nodes if measures.gradients.intersection(node.outputs))
    kept = set[int]().union(*map(activation_memory.tensors, backward))
    return costs.Costs(
        nodes=tuple(map(measures.cost, model.nodes)),
        tensors=tuple(
            costs.TensorCost(
                bytes=size,
                kept=number in kept and number not in model.inputs,
                has_gradient=number in measures.gradients,
            )
            for number, size in enumerate(measures.sizes)
        ),
        variables={
            key: costs.VariableCosts(
                _bytes(variable), _bytes(variable) * variable.trainable, slots.get(key, 0)
            )
            for key, variable in model.variables.items()
        },
        fixed_slots=fixed_slots,
        batch_bytes=measures.count_inputs() + measures.count_labels(loss),
        copies=copies,
        colocated=_colocated(model),
    )


class _Measures:
    def __init__(self, model: graph.Graph, length: int | None) -> None:
        self._model = model
        self._shapes = [_shape(model, number, length) for number in range(len(model.tensors))]
        """Of each tensor for one row of the batch."""
        self.sizes = [
            graph_tensor.rows * math.prod(shape) * graph.itemsize(graph_tensor.dtype)
            for graph_tensor, shape in zip(model.tensors, self._shapes, strict=True)
        ]
        """Bytes of each for one example."""
        self.gradients = graph.with_gradient(model)
        """The tensors that a gradient comes back to."""
        self.ends = {tensor_of_output.tensor for tensor_of_output in model.outputs}

    def cost(self, node: graph.Node) -> costs.NodeCost:
        """That of a node."""
        forms = [self._shapes[number] for number in node.operands]
        outputs = [self._shapes[number] for number in node.outputs]
        moved = sum(self.sizes[number] for number in (*node.inputs, *node.outputs))
        variables = [self._model.variables[key] for key in node.variables]
        first = self._model.tensors[node.outputs[0]]
        rows, width = first.rows, graph.itemsize(first.dtype)
        inner = working = 0.0
        if self.gradients.intersection(node.outputs):
            inner = rows * activation_memory.inner(node, forms, outputs, width)
            working = rows * width * activation_memory.working(node, forms, outputs)
        # The loss keeps as much of an output as the output has, not the output itself.
        inner += sum(self.sizes[number] for number in node.outputs if number in self.ends)
        trained = sum(_bytes(variable) for variable in variables if variable.trainable)
        return costs.NodeCost(
            flops=rows * flops.count_flops(node, forms, outputs),
            tensor_bytes=moved,
            weight_bytes=sum(map(_bytes, variables)),
            gradient_bytes=0.0 if isinstance(node.calls, keras.layers.Embedding) else trained,
            backward=float(any(number in self.gradients for number in node.operands))
            + any(variable.trainable for variable in variables),
            inner_bytes=inner,
            working_bytes=moved + working,
            early_bytes=working if activation_memory.begins_early(node) else 0.0,
            dtype=first.dtype,
        )

    def count_inputs(self) -> float:
        """Bytes of an example of what the model takes."""
        return float(sum(self.sizes[number] for number in self._model.inputs))

    def count_labels(self, loss: Any) -> float:
        """Bytes of an example of what a loss takes: one class for each distribution, or all."""
        if loss is None:
            return 0.0
        sizes = {number: self.sizes[number] for number in self.ends}
        if all(map(_takes_classes, keras.tree.flatten(loss))):
            sizes = {
                number: size // (self._shapes[number] or (1,))[-1] for number, size in sizes.items()
            }
        return float(sum(sizes.values()))


def _takes_classes(loss: Any) -> bool:
    """Whether a loss, or a name of one, takes the number of a class as its label."""
    function = getattr(loss, "fn", loss)
    name = str(getattr(function, "__name__", function))
    return name.replace("_", "").lower() == "sparsecategoricalcrossentropy"


def _bytes(variable: Any) -> int:
    return int(math.prod(variable.shape)) * graph.itemsize(variable.dtype)


def _colocated(model: graph.Graph) -> frozenset[tuple[int, ...]]:
    readers: dict[str, list[int]] = {key: [] for key in recording.gathered(model)}
    for index, node in enumerate(model.nodes):
        for key in readers.keys() & set(node.variables):
            readers[key].append(index)
    return frozenset(
        tuple(readers_of_key) for readers_of_key in readers.values() if len(readers_of_key) > 1
    )


def _shape(model: graph.Graph, number: int, length: int | None) -> tuple[int, ...]:
    """The shape of a tensor for one row of the batch, without that dimension."""
    graph_tensor = model.tensors[number]
    inner = [size for index, size in enumerate(graph_tensor.shape) if index != graph_tensor.batch]
    if None in inner and length is None:
        makers = (node.name for node in model.nodes if number in node.outputs)
        name = model.input_names[number] if number in model.inputs else next(makers, number)
        raise errors.BadConfigurationError(
            f"The tensor {name} has the shape {graph_tensor.shape}, of which only the data tells "
            "more than the batch: say how long it is with --length."
        )
    return tuple(length or 1 if size is None else size for size in inner)
