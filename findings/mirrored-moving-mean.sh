#!/usr/bin/env bash
# Under MirroredStrategy, the moving mean of BatchNormalization stays apart on each device, and Keras reads and saves
# that of the first alone.
#
# Keras 3.15.1, TensorFlow 2.21.0; tf_keras takes the mean over the replicas. With momentum 0 the moving mean is that of
# the last batch. After a batch of 4 on two devices, the model has the mean of its first 2 examples: half of the data
# has no say in what is saved, and each replica normalises by its own part. `synchronized=True` mends both.
set -euo pipefail
source "$(dirname "$0")/keras.bash"

for synchronized in False True; do
    shown=$(run <<PYTHON
def build():
    return keras.Sequential([
        keras.Input((3,)), keras.layers.BatchNormalization(momentum=0.0, synchronized=$synchronized), keras.layers.Dense(2)
    ])
with mirrored().scope():
    model = build()
    model.compile("sgd", "mse")
model.fit(x[:4], y[:4], batch_size=4, shuffle=False, verbose=0)
mean = model.layers[0].moving_mean.numpy()
print("mean of", [n for n in (1, 2, 4) if np.allclose(mean, x[:n].mean(axis=0))])
PYTHON
)
    [ $synchronized = False ] && expect "plain" "$shown" "mean of [2]" || expect "synchronized" "$shown" "mean of [4]"
done
