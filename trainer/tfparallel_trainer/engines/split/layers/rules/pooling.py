"""Rules for images with divided rows: pooling, also of all rows into one, padding and repeating."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfparallel_trainer.comms import collectives
from tfparallel_trainer.engines.split.layers import adjoint, communication, layout, row_division
from tfparallel_trainer.engines.split.layers.rules import registry, spatial
from tfparallel_trainer.engines.split.pipeline import schedule


class PoolingRule(spatial.HaloRule):
    """Each rank pools its rows and its halo; channels stay as they are."""

    def compute(self, local: registry.Local) -> Sequence[Any]:
        layer = local.layer
        image, shares = spatial.brought(local, local.first, self._plan_of)
        options = {
            "pool_size": layer.pool_size,
            "strides": layer.strides,
            "padding": "valid",
            "data_format": layer.data_format,
        }
        if layer.pool_mode == "max":
            padded = spatial.surrounded(image, shares, fill=image.dtype.min)
            return [keras.ops.max_pool(padded, **options)]
        pooled = keras.ops.average_pool(spatial.surrounded(image, shares), **options)
        sizes = [spatial.spans_of(local)[-1].stop, *image.shape[2:-1]]
        return [pooled * tf.constant(_scale(layer, shares, sizes), pooled.dtype)]


class PaddingRule(spatial.HaloRule):
    """Layers that add or drop rows: zero padding, cropping, repeating."""

    def split(self, call: registry.Call) -> registry.Split:
        interpolation = getattr(call.layer, "interpolation", "nearest")
        if interpolation != "nearest":
            raise registry.CannotSplitError(
                f"its interpolation is {interpolation}: give nearest, or replicate the layer"
            )
        return super().split(call)

    def compute(self, local: registry.Local) -> Sequence[Any]:
        layer = local.layer
        image, shares = spatial.brought(local, local.first, self._plan_of)
        for dimension, share in enumerate(shares[1:], spatial.ROWS + 1):
            chosen = slice(share.input.start, share.input.stop)
            image = image[(*[slice(None)] * dimension, chosen)]
        if hasattr(layer, "size"):
            for dimension, factor in enumerate(_each(layer.size), spatial.ROWS):
                image = tf.repeat(image, factor, dimension)
            return [spatial.kept(image, shares)]
        return [spatial.surrounded(image, shares)]


class GlobalAverageRule(spatial.PerChannelRule):
    """The mean of all rows; each rank adds up its own."""

    def split(self, call: registry.Call) -> registry.Split:
        input_layout, output_layout = _reduced(call)
        dims = output_layout.largest(call.dimensions(call.result))
        costs = call.sends(
            communication.CollectiveKind.SUM, spatial.AXIS, [schedule.Pass.FORWARD], dims
        )
        return call.split(input_layout, output_layout, costs=costs)

    def compute(self, local: registry.Local) -> Sequence[Any]:
        layer, tensor = local.layer, local.first
        share = tensor.shape[spatial.ROWS] / spatial.spans_of(local)[-1].stop
        mean = tf.reduce_mean(tensor, _between(tensor), keepdims=layer.keepdims)
        return [adjoint.reduce_from_group(local.groups[spatial.AXIS], mean * share)]


class GlobalMaxRule(spatial.PerChannelRule):
    """The maximum of all rows; each rank finds that of its own."""

    def split(self, call: registry.Call) -> registry.Split:
        input_layout, output_layout = _reduced(call)
        dims = output_layout.largest(call.dimensions(call.result))
        costs = call.sends(
            communication.CollectiveKind.GATHER, spatial.AXIS, [schedule.Pass.FORWARD], dims
        )
        back = call.backward(call.first)
        costs += call.sends(communication.CollectiveKind.SUM, spatial.AXIS, back, dims, "float32")
        return call.split(input_layout, output_layout, costs=costs)

    def compute(self, local: registry.Local) -> Sequence[Any]:
        largest = _largest(local.groups[spatial.AXIS], local.first)
        return [largest if local.layer.keepdims else tf.squeeze(largest, _between(largest))]


def _largest(group: collectives.Communicator, tensor: tf.Tensor) -> tf.Tensor:
    """Reduce all dimensions between examples and channels to the maximum over all ranks.

    All positions with the maximum share its gradient, as in TensorFlow.
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def function(shard: tf.Tensor) -> Any:
        carried = tf.as_dtype(communication.carried(shard.dtype.name))
        inner = tf.cast(tf.reduce_max(shard, _between(shard), keepdims=True), carried)
        largest = tf.cast(tf.reduce_max(group.gather(inner), 0), shard.dtype)
        here = tf.equal(shard, largest)

        def back(gradient: tf.Tensor) -> tf.Tensor:
            places = tf.reduce_sum(tf.cast(here, tf.float32), _between(shard), keepdims=True)
            count = tf.cast(group.sum(places), shard.dtype)
            return tf.cast(here, shard.dtype) * (gradient / count)

        return largest, back

    return function(tensor)


def _reduced(call: registry.Call) -> tuple[layout.Layout, layout.Layout]:
    """Layouts of a layer that reduces all rows, for input and output; only channels stay cut."""
    spatial.check(call)
    input_layout = spatial.as_it_comes(call)
    if call.ranks(spatial.AXIS) > 1 and input_layout.cuts[spatial.ROWS] is None:
        raise registry.CannotSplitError(
            "its input isn't sharded by rows: split the layer before it by rows"
        )
    return input_layout, call.whole(call.result).put(-1, input_layout.cuts[-1])


def _between(tensor: tf.Tensor) -> list[int]:
    return list(range(1, tensor.shape.rank - 1))


def _pooled(layer: Any, position: int, spans: row_division.Spans) -> row_division.RowPlan:
    window = row_division.Window(layer.pool_size[position], layer.strides[position])
    return row_division.windows(spans, window, layer.padding)


def _scale(layer: Any, shares: Sequence[row_division.Share], sizes: Sequence[int]) -> Any:
    """The factor that removes padding from a mean over windows: [1, rows, …, 1]."""
    counts = np.ones(())
    for index, (share, size) in enumerate(zip(shares, sizes, strict=True)):
        length, stride = layer.pool_size[index], layer.strides[index]
        starts = np.arange(len(share.output)) * stride + share.input.start - share.before
        real = np.minimum(starts + length, size) - np.maximum(starts, 0)
        counts = np.multiply.outer(counts, length / real)
    return counts[np.newaxis, ..., np.newaxis]


def _padded(layer: Any, position: int, spans: row_division.Spans) -> row_division.RowPlan:
    return row_division.padded(spans, *_sides(layer.padding, position))


def _cropped(layer: Any, position: int, spans: row_division.Spans) -> row_division.RowPlan:
    before, after = _sides(layer.cropping, position)
    return row_division.padded(spans, -before, -after)


def _repeated(layer: Any, position: int, spans: row_division.Spans) -> row_division.RowPlan:
    return row_division.repeated(spans, _each(layer.size)[position])


def _sides(of_layer: Any, position: int) -> Any:
    """Rows that a layer adds or drops before and after; one dimension has no inner tuple."""
    return of_layer if isinstance(of_layer[0], int) else of_layer[position]


def _each(size: Any) -> tuple[int, ...]:
    return (size,) if isinstance(size, int) else tuple(size)


RULES: registry.Rules = {
    "MaxPooling*D AveragePooling*D": PoolingRule.pair(_pooled),
    "GlobalAveragePooling*D": GlobalAverageRule.pair(),
    "GlobalMaxPooling*D": GlobalMaxRule.pair(),
    "ZeroPadding*D": PaddingRule.pair(_padded),
    "Cropping*D": PaddingRule.pair(_cropped),
    "UpSampling*D": PaddingRule.pair(_repeated),
}
