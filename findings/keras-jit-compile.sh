#!/usr/bin/env bash
# `jit_compile="auto"`, the default of `model.compile`, compiles nothing under a strategy of TensorFlow.
#
# Keras 3.15.1, TensorFlow 2.21.0. It means XLA where there is a GPU or TPU, but no XLA under MirroredStrategy, with no
# word about it. So a step on several devices is another program than that on one. `jit_compile=True` holds. A device
# that TensorFlow lists stands for the GPU here; nothing runs on it.
set -euo pipefail
source "$(dirname "$0")/keras.bash"

shown=$(run <<'PYTHON'
from unittest import mock

listed = [*tf.config.list_physical_devices(), tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")]


def compiled(strategy, **options):
    with strategy.scope(), mock.patch.object(tf.config, "list_physical_devices", lambda *_: listed):
        model = dense()
        model.compile("sgd", "mse", **options)
        return model.jit_compile


print("one device:", compiled(tf.distribute.get_strategy()))
both = mirrored()
print("two devices:", compiled(both))
print("two devices, True:", compiled(both, jit_compile=True))
PYTHON
)
expect "auto on one device" "$shown" "one device: True"
expect "auto on two" "$shown" "two devices: False"
expect "True on two" "$shown" "two devices, True: True"
