#!/usr/bin/env bash
# With `gradient_accumulation_steps`, Keras counts batches where one expects updates: for schedules and for averages.
#
# Keras 3.15.1, TensorFlow 2.21.0. A schedule is asked with the number of batches, so with 4 accumulation steps it decays
# four times as fast as the weights are updated, although `optimizer.iterations` counts updates. The moving average of
# `use_ema` moves after each batch, also after those that only accumulate, so with `ema_momentum` 0.5 it forgets the
# weights of the update before by 0.5 ^ 4.
set -euo pipefail
source "$(dirname "$0")/keras.bash"

shown=$(run <<'PYTHON'
class Watch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        optimizer = self.model.optimizer
        rates.append(round(float(optimizer.learning_rate), 4))
        updates.append(int(optimizer.iterations))
        if optimizer.use_ema:
            weight = self.model.trainable_variables[0].numpy()
            averages.append(round(float(abs(optimizer._model_variables_moving_average[0].numpy() - weight).max()), 12))


def watched(**options):
    model = dense()
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([3], [0.1, 0.01])
    model.compile(keras.optimizers.SGD(schedule, gradient_accumulation_steps=4, **options), "mse")
    model.fit(x, y, batch_size=1, epochs=2, verbose=0, callbacks=[Watch()])


rates, updates, averages = [], [], []
watched()
print("rates:", rates[:8])
print("updates:", updates[:8])
watched(use_ema=True, ema_momentum=0.5)
after_update, *later = averages[7:11]  # the second one; the average begins with the first
print("average comes nearer without an update:", after_update > later[0] > later[1] > later[2] > 0)
PYTHON
)
expect "the rate by batch, to be lowered after 3" "$shown" "rates: [0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.01, 0.01]"
expect "updates by batch" "$shown" "updates: [0, 0, 0, 1, 1, 1, 1, 2]"
expect "the moving average" "$shown" "average comes nearer without an update: True"
