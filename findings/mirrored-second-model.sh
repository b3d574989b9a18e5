#!/usr/bin/env bash
# A second MirroredStrategy in one process cannot train a model of another size.
#
# Keras 3.15.1, TensorFlow 2.21.0, two logical CPUs. Each strategy numbers its collectives from 100 on, in the same group.
# The second model meets what the runtime keeps of the first under these numbers: the first step of `fit` ends with a shape
# mismatch "in the collective instance 100". With the same shapes, and with one strategy for both models, it trains.
set -euo pipefail
source "$(dirname "$0")/keras.bash"

program() { # STRATEGIES UNITS
    run <<PYTHON
strategies = $1
for strategy, units in zip(strategies, $2):
    def build():
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(units), keras.layers.Dense(2)])
    print(units, refusal(lambda: fit(build, keras.optimizers.SGD, strategy)))
PYTHON
}
shown=$(program "[mirrored(), mirrored()]" "(4, 5)")
expect "the first model" "$shown" "4 none"
expect "a model of another size under its own strategy" "$shown" "Shape mismatch in the collective instance 100"
expect "one of the same size" "$(program "[mirrored(), mirrored()]" "(4, 4)" | tail -n 1)" "4 none"
expect "one of another size under the same strategy" "$(program "[mirrored()] * 2" "(4, 5)" | tail -n 1)" "5 none"
