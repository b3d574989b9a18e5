"""Keras layers for models that are too large for one place, and sums over replicas for your own."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

_USUAL_SHARDS = 8


@keras.saving.register_keras_serializable(package="tfparallel")
class ShardedEmbedding(keras.layers.Layer):
    """`keras.layers.Embedding` with a table that is kept in several weights.

    Parameter servers hold whole weights, so a table of one weight lies on one server. Row `i` of
    this one is row `i // shards` of shard `i % shards`, so that frequent rows, which mostly have
    neighbouring numbers, are spread too. A step reads the rows that it uses, and no others.

    Args:
        input_dim: rows of the table; inputs are integers below it.
        output_dim: columns of the table.
        shards: how many weights the table is kept in. It belongs to the model, like the table's
            shape, and not to the servers that happen to train it: saved models and checkpoints hold
            that many. Give as many as there are ever servers, or a multiple; by default 8.
        embeddings_initializer: called for each shard with the shard's shape.
        embeddings_regularizer: added up over shards, as L1 and L2 can be.
        mask_zero: whether an input of 0 is not an example but padding, and is masked.
        kwargs: as for every Keras layer, such as name and dtype.

    Raises:
        ValueError: a size is less than 1, or there are more shards than rows.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        shards: int | None = None,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        mask_zero: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name, value in (("input_dim", input_dim), ("output_dim", output_dim)):
            if value < 1:
                raise ValueError(f"{name} is {value}: give at least 1.")
        if shards is not None and not 1 <= shards <= input_dim:
            raise ValueError(f"shards is {shards}: give 1 to {input_dim}, the rows of the table.")
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.shards = shards or min(_USUAL_SHARDS, input_dim)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        self.autocast = False  # it would read whole shards to convert them
        self._parts: list[Any] = []

    def build(self, _: Any = None) -> None:
        """Make the shards."""
        for shard in range(self.shards):
            rows = len(range(shard, self.input_dim, self.shards))
            self._parts.append(
                self.add_weight(
                    shape=(rows, self.output_dim),
                    initializer=_of_shard(self.embeddings_initializer, shard),
                    name=f"shard_{shard}",
                    regularizer=self.embeddings_regularizer,
                )
            )
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Look the rows up, each in its shard."""
        ids = tf.convert_to_tensor(inputs)
        if not ids.dtype.is_integer:
            ids = tf.cast(ids, tf.int32)
        flat = tf.reshape(ids, (-1,))
        places = tf.cast(flat % self.shards, tf.int32)
        rows = tf.dynamic_partition(flat // self.shards, places, self.shards)
        positions = tf.dynamic_partition(tf.range(tf.size(flat)), places, self.shards)
        vectors = [tf.gather(part.value, row) for part, row in zip(self._parts, rows, strict=True)]
        whole = tf.dynamic_stitch(positions, vectors)
        shaped = tf.reshape(whole, tf.concat((tf.shape(ids), (self.output_dim,)), 0))
        shaped.set_shape((*ids.shape, self.output_dim))
        return tf.cast(shaped, self.compute_dtype)

    def compute_mask(self, inputs: Any, _: Any = None) -> Any:
        """Which inputs are not padding."""
        return keras.ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """One more axis, for the columns."""
        return (*input_shape, self.output_dim)

    def table(self) -> Any:
        """The whole table, [input_dim, output_dim], as a NumPy array."""
        whole = np.empty((self.input_dim, self.output_dim), self._parts[0].dtype)
        for shard, part in enumerate(self._parts):
            whole[shard :: self.shards] = part.numpy()
        return whole

    def assign_table(self, values: Any) -> None:
        """Give the layer a whole table, such as the weight of a `keras.layers.Embedding`."""
        for shard, part in enumerate(self._parts):
            part.assign(values[shard :: self.shards])

    def get_config(self) -> dict[str, Any]:
        """What makes an equal layer."""
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "shards": self.shards,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "embeddings_regularizer": keras.regularizers.serialize(self.embeddings_regularizer),
            "mask_zero": self.mask_zero,
        }


def sum_over_replicas(value: Any) -> Any:
    """Add a tensor, or a structure of them, up over the parts that replicas have of a batch.

    For layers of your own that take the batch as a whole while they train, such as a normalization
    or a codebook. Give sums and counts of examples: parts differ in size. In one process, and in
    inference, the value stays as it is. Gradients are added up likewise.
    """
    context = tf.distribute.get_replica_context()
    if context is None:
        return value
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value)


def _of_shard(initializer: Any, shard: int) -> Any:
    """The initializer with a seed of its own: Keras' give the same values each time otherwise."""
    if not hasattr(initializer, "get_config"):
        return initializer
    config = initializer.get_config()
    if isinstance(config.get("seed"), int):
        config["seed"] = (config["seed"] * 7919 + shard) % 2**31
    return type(initializer).from_config(config)
