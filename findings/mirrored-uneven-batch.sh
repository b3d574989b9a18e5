#!/usr/bin/env bash
# Under MirroredStrategy, a batch that the devices do not divide equally ends Keras' fit if it is the first one, and
# weights its examples unequally if it is a later one.
#
# Keras 3.15.1, TensorFlow 2.21.0. 5 examples on two devices as the first batch: `fit` adds up the parts of the
# replicas to learn the shapes, and ends with "Inputs to operation AddN must have the same size and shape". A last batch
# of 3 examples after one of 4 trains: its loss is the mean of the means of 2 and of 1 examples, so the weights are others
# than on one device. The loss that `fit` reports for the epoch is that of one device, so nothing shows.
set -euo pipefail
source "$(dirname "$0")/keras.bash"

shown=$(run <<'PYTHON'
sgd = lambda: keras.optimizers.SGD(0.1)
print("first:", refusal(lambda: fit(dense, sgd, mirrored(), examples=5, batch_size=5)))
difference = largest_difference(dense, sgd, examples=7)
print("last:", "equal" if difference < 1e-12 else "differs" if difference > 1e-2 else difference)
difference = largest_difference(dense, sgd)
print("even:", "equal" if difference < 1e-12 else difference)
PYTHON
)
expect "a first batch of 5" "$shown" "must have the same size and shape"
expect "a last batch of 3" "$shown" "last: differs"
expect "even batches" "$shown" "even: equal"
