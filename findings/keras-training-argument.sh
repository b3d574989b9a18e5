#!/usr/bin/env bash
# In a Functional model of Keras, `layer(x, training=True)` and `layer(x, training=False)` count for nothing in fit and
# predict: the argument of the whole call replaces them.
#
# Keras 3.15.1, TensorFlow 2.21.0. A Dropout that is called with training=True when the model is built, as Monte Carlo
# dropout does it, drops nothing in `predict`. A BatchNormalization below a base model that is called with training=False,
# as fine-tuning does it, moves its mean and variance in `fit`. `trainable = False` on the layers does hold.
set -euo pipefail
source "$(dirname "$0")/keras.bash"

shown=$(run <<'PYTHON'
inputs = keras.Input((3,))
always = keras.Model(inputs, keras.layers.Dropout(0.5)(inputs, training=True))
print("dropped by predict:", int((always.predict(np.ones((8, 3)), verbose=0) == 0).sum()))

for trainable in (True, False):
    base = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization()])
    base.trainable = trainable
    model = keras.Model(inputs, keras.layers.Dense(2)(base(inputs, training=False)))
    model.compile("sgd", "mse")
    model.fit(x, y, verbose=0)
    moved = bool(np.any(base.layers[0].moving_mean.numpy()))
    print(f"trainable {trainable}: mean moved by fit: {moved}")
PYTHON
)
expect "Dropout built with training=True" "$shown" "dropped by predict: 0"
expect "BatchNormalization built with training=False" "$shown" "trainable True: mean moved by fit: True"
expect "the same, not trainable" "$shown" "trainable False: mean moved by fit: False"
