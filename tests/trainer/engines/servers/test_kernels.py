"""Convolutions that Keras lets XLA compile train with kernels on other devices, such as servers."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing.trainer import ranks
from tfparallel_trainer.engines.servers import parameter_server_run


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("kind", "size", "options"),
    [
        (keras.layers.Conv1D, (2, 4, 6), {"groups": 2}),
        (keras.layers.Conv3D, (2, 6, 3, 4, 4), {"data_format": "channels_first"}),
    ],
)
def test_a_convolution_that_xla_compiles_reads_its_kernel_from_another_device(
    kind: Any, size: tuple[int, ...], options: dict[str, Any]
) -> None:
    x = np.random.default_rng(0).normal(size=size)

    def differentiate(device: str) -> list[Any]:
        keras.utils.set_random_seed(1)
        with tf.device(device):
            layer = kind(4, 2, **options)
            layer.build(size)
        with tf.device(ranks.DEVICES[0]), tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(layer(x)))
        return [loss, *tape.gradient(loss, [tensor.value for tensor in layer.trainable_variables])]

    expected = differentiate(ranks.DEVICES[0])
    with parameter_server_run.kernels_read_first():
        computed = differentiate(ranks.DEVICES[1])
    for array, other in zip(computed, expected, strict=True):
        np.testing.assert_allclose(array, other, rtol=0, atol=1e-13)
