"""Keras' fit with parameter servers, started in a real cluster.

Source: TensorFlow, tutorial "Parameter server training with ParameterServerStrategy", with `fit`.
"""

import os

import numpy as np
import tensorflow as tf

import tfparallel_trainer

x = np.random.default_rng(7).uniform(size=(10, 10)).astype("float32")
y = np.mean(x, axis=1, keepdims=True)


def build_model():
    model = tf.keras.models.Sequential([tf.keras.layers.Dense(10)])
    model.compile(tf.keras.optimizers.SGD(), loss="mse")
    return model


working_dir = "./my_working_dir"
log_dir = os.path.join(working_dir, "log")
ckpt_filepath = os.path.join(working_dir, "ckpt.keras")
backup_dir = os.path.join(working_dir, "backup")
callbacks = [
    tf.keras.callbacks.TensorBoard(log_dir=log_dir),
    tf.keras.callbacks.ModelCheckpoint(filepath=ckpt_filepath),
]
history = tfparallel_trainer.fit(
    build_model, x, y, batch_size=5, epochs=20, callbacks=callbacks, output_dir=backup_dir
)
first, *_, last = history.history["loss"]
print(f"loss {first:.4f} to {last:.4f}", flush=True)
