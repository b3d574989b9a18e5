#!/usr/bin/env bash
# With TensorFlow, a layer that is built under `keras.RematScope` cannot be called in a traced function.
#
# Keras 3.15.1, TensorFlow 2.21.0. Keras gives `tf.recompute_grad` a layer's call with keyword arguments, such as
# `training`, which `tf.custom_gradient` refuses while it traces. So `fit` fails. The layer works eagerly.
set -euo pipefail
source "$(dirname "$0")/keras.bash"

shown=$(run <<'PYTHON'
with keras.RematScope(mode="full"):
    layer = keras.layers.Dense(2)
model = keras.Sequential([keras.Input((3,)), layer])
for eagerly in (True, False):
    model.compile("sgd", "mse", run_eagerly=eagerly)
    try:
        model.fit(x, y, verbose=0)
        print(f"eagerly {eagerly}: trained")
    except ValueError as error:
        print(f"eagerly {eagerly}:", "supports keywords arguments only" in str(error))
PYTHON
)
expect "fit, eagerly" "$shown" "eagerly True: trained"
expect "fit, traced" "$shown" "eagerly False: True"
