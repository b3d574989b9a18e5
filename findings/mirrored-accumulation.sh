#!/usr/bin/env bash
# `gradient_accumulation_steps` and `steps_per_execution` of Keras cannot be used under MirroredStrategy.
#
# Keras 3.15.1, TensorFlow 2.21.0, two logical CPUs. Both are documented without an exception. With the first, tracing
# `fit` ends with "merge_call called while defining a new graph": the optimizer applies what it has accumulated within a
# condition, where replicas cannot meet. With the second, the first step ends with a placeholder that has no value.
set -euo pipefail
source "$(dirname "$0")/keras.bash"

shown=$(run <<'PYTHON'
accumulating = lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
print("one device:", refusal(lambda: fit(dense, accumulating)))
print("two devices:", refusal(lambda: fit(dense, accumulating, mirrored())).replace("\n", " "))
PYTHON
)
expect "accumulation on one device" "$shown" "one device: none"
expect "accumulation on two" "$shown" "merge_call\` called while defining a new graph"

shown=$(run <<'PYTHON'
def several(strategy):
    with strategy.scope():
        model = dense()
        model.compile("sgd", "mse", steps_per_execution=2)
    model.fit(x, y, batch_size=4, verbose=0)

print("one device:", refusal(lambda: several(tf.distribute.get_strategy())))
print("two devices:", refusal(lambda: several(mirrored())).replace("\n", " "))
PYTHON
)
expect "two steps per execution on one device" "$shown" "one device: none"
expect "two steps per execution on two" "$shown" "You must feed a value for placeholder tensor"
