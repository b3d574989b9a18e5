#!/usr/bin/env bash
# Under MirroredStrategy, Dropout of Keras draws one mask for all replicas, not one for each.
#
# Keras 3.15.1, TensorFlow 2.21.0. The state of a seed generator is a variable that every replica holds in the same
# state, so the replicas drop the same places of their parts at each step. With n replicas, a batch of 8 n examples has
# 8 masks, each used n times. Nothing says so; TensorFlow's own random operations draw apart on each replica.
set -euo pipefail
source "$(dirname "$0")/keras.bash"

shown=$(run <<'PYTHON'
strategy = mirrored()
with strategy.scope():
    dropout = keras.layers.Dropout(0.5, seed=1)
    ones = tf.ones((8, 16), "float64")
    dropout(ones)


@tf.function
def masks(drop):
    return strategy.run(lambda: drop(ones))


for name, drop in (("keras", lambda a: dropout(a, training=True)), ("tf", lambda a: tf.nn.dropout(a, 0.5))):
    steps = [strategy.experimental_local_results(masks(drop)) for _ in range(2)]
    print(name, "replicas alike:", all(np.array_equal(a, b) for a, b in steps))
    print(name, "steps alike:", np.array_equal(steps[0][0], steps[1][0]))
PYTHON
)
expect "keras.layers.Dropout on two replicas" "$shown" "keras replicas alike: True"
expect "keras.layers.Dropout at two steps" "$shown" "keras steps alike: False"
expect "tf.nn.dropout on two replicas" "$shown" "tf replicas alike: False"
