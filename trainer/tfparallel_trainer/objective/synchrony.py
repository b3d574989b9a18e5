"""BatchNormalization(synchronized=True) over the ranks that a batch is divided over.

Such a layer asks TensorFlow for the replica context that it runs in, and adds its sums up by that
context's `all_reduce`. So each rank runs its forward pass in a context of its own, whose
`all_reduce` is the mesh's. Counts are added up as sums are, so parts may differ in size.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.comms import collectives
from tfparallel_trainer.objective import checks


def layers(model: Any) -> list[Any]:
    """The layers of a model whose statistics are synchronised while it trains."""
    return among(checks.layers(model))


def among(layers_of_all: Iterable[Any]) -> list[Any]:
    """The synchronised layers among these."""
    return [
        layer
        for layer in layers_of_all
        if isinstance(layer, keras.layers.BatchNormalization)
        and layer.synchronized
        and layer.trainable
    ]


class NestedReplicaContext(tf.distribute.ReplicaContext):  # type: ignore[misc]  # TensorFlow has no types
    """A replica context within the current one, with the same replica id and variables."""

    def __init__(self) -> None:
        self._outer = tf.distribute.get_replica_context()
        super().__init__(self._outer.strategy, number(self._outer))

    def merge_call(self, merge_fn: Callable[..., Any], args: Any = (), kwargs: Any = None) -> Any:
        """Merge in the outer context."""
        with self._outer:
            return self._outer.merge_call(merge_fn, args, kwargs)


def number(context: Any) -> Any:
    """A replica's id among all: a number if TensorFlow knows it while tracing."""
    replica_id = context.replica_id_in_sync_group
    static_number = tf.get_static_value(replica_id)
    return replica_id if static_number is None else int(static_number)


class ReplicaContext(NestedReplicaContext):
    """The replica context of a rank of the data axis; enter it around a forward pass."""

    def __init__(self, data: collectives.Communicator) -> None:
        super().__init__()
        self._data = data
        self.sums = 0
        """Number of sums that layers have requested."""

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Add tensors up over the ranks; gradients of the sum are added up likewise."""
        check_operation(reduce_op)
        self.sums += 1
        return keras.tree.map_structure(self._sum, value)

    def _sum(self, tensor: Any) -> tf.Tensor:
        @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow has no types
        def add_up(addend: tf.Tensor) -> Any:
            return self._data.sum(addend), self._data.sum

        return add_up(tf.convert_to_tensor(tensor))


def check_operation(reduce_op: Any) -> None:
    """Refuse (UserCodeError) a layer that reduces over replicas by anything but a sum."""
    if tf.distribute.ReduceOp(reduce_op) is not tf.distribute.ReduceOp.SUM:
        raise errors.UserCodeError(
            f"{checks.calling_layer()} reduces over replicas by {reduce_op}: this engine adds up "
            "only, so let it use tf.distribute.ReduceOp.SUM.",
            function="build_model",
        )


def forward(model: Any, data: collectives.Communicator, x: Any) -> Any:
    """Call a model on a rank's examples as in training, all synchronised layers included."""
    with within(model, data) as context:
        y_pred = model(x, training=True)
    synchronised = layers(model)
    if context is not None and context.sums < len(synchronised):
        names = ", ".join(layer.name for layer in synchronised[:3])
        raise errors.UserCodeError(
            f"BatchNormalization(synchronized=True) ({names}) was not synchronised: "
            "Keras does not do it for masked inputs, nor for a layer that is not called. Remove "
            "the mask or use LayerNormalization.",
            function="build_model",
        )
    return y_pred


@contextlib.contextmanager
def within(model: Any, data: collectives.Communicator) -> Iterator[ReplicaContext | None]:
    """Let synchronised layers add up over the ranks in the body, if the model has any."""
    if data.size == 1 or not (layers(model) or checks.runs_user_code(model)):
        yield None
        return
    context = ReplicaContext(data)
    with context:  # it enters as None
        yield context
