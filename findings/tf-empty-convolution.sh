#!/usr/bin/env bash
# On a CPU, a convolution of an empty batch has the shape of its input.
#
# TensorFlow 2.21.0 with oneDNN, its default on x86. So a replica without examples, of the last batch for instance,
# continues with tensors of a wrong shape. Without oneDNN the shape is right.
set -euo pipefail
source "$(dirname "$0")/keras.bash"

program=$(cat <<'PYTHON'
for examples in (1, 0):
    images = tf.zeros([examples, 8, 8, 1])
    convolved = tf.nn.conv2d(images, tf.ones([3, 3, 1, 4]), strides=1, padding="VALID")
    print(f"{examples} examples: {convolved.shape}")
PYTHON
)
shown=$(run <<<"$program")
expect "one example" "$shown" "1 examples: (1, 6, 6, 4)"
expect "none" "$shown" "0 examples: (0, 8, 8, 1)"
shown=$(TF_ENABLE_ONEDNN_OPTS=0 run <<<"$program")
expect "none, without oneDNN" "$shown" "0 examples: (0, 6, 6, 4)"
