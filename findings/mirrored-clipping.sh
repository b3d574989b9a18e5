#!/usr/bin/env bash
# Under MirroredStrategy, Keras clips what each replica computed, before it adds the gradients of all replicas.
#
# Keras 3.15.1, TensorFlow 2.21.0. With the same batches, `clipnorm`, `global_clipnorm` and `clipvalue` train other
# weights on two devices than on one, without a warning. Without clipping they are equal to the last digits. Each replica
# clips the gradient of its share of the loss, so the sum may be longer than the limit by the number of replicas.
set -euo pipefail
source "$(dirname "$0")/keras.bash"

shown=$(run <<'PYTHON'
def sgd(**clipping):
    return lambda: keras.optimizers.SGD(0.1, **clipping)

for clipping in ({}, {"clipnorm": 0.1}, {"global_clipnorm": 0.1}, {"clipvalue": 0.05}):
    difference = largest_difference(dense, sgd(**clipping))
    print(*clipping or ["none"], "equal" if difference < 1e-12 else "differs" if difference > 1e-3 else difference)
PYTHON
)
expect "no clipping" "$shown" "none equal"
for way in clipnorm global_clipnorm clipvalue; do expect "$way" "$shown" "$way differs"; done
