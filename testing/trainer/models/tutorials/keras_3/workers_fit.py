"""Keras' fit on several workers under MultiWorkerMirroredStrategy.

Source: TensorFlow, tutorial "Multi-worker training with Keras".
"""

import json
import os

import numpy as np
import tensorflow as tf
from sklearn import datasets

import tfparallel_trainer


def load_data():
    """Handwritten digits, scaled to the 28 by 28 pixels of MNIST."""
    digits = datasets.load_digits()
    images = np.pad(np.kron(digits.images * 15, np.ones((3, 3))), ((0, 0), (2, 2), (2, 2)))
    return images.astype("uint8"), digits.target


def mnist_dataset(batch_size):
    x_train, y_train = load_data()
    x_train = x_train / np.float32(255)
    y_train = y_train.astype(np.int64)
    dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train))
    return dataset.shuffle(60000, seed=7).repeat().batch(batch_size)


def build_and_compile_cnn_model():
    model = tf.keras.Sequential(
        [
            tf.keras.Input(shape=(28, 28)),
            tf.keras.layers.Reshape(target_shape=(28, 28, 1)),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.05),
        metrics=["accuracy"],
    )
    return model


per_worker_batch_size = 64
tf_config = json.loads(os.environ["TF_CONFIG"])
num_workers = len(tf_config["cluster"]["worker"])

strategy = tf.distribute.MultiWorkerMirroredStrategy()

global_batch_size = per_worker_batch_size * num_workers
multi_worker_dataset = mnist_dataset(global_batch_size)

with strategy.scope():
    multi_worker_model = build_and_compile_cnn_model()

history = tfparallel_trainer.fit(
    multi_worker_model,
    multi_worker_dataset,
    epochs=3,
    steps_per_epoch=20,
)
print(f"accuracy {history.history['accuracy'][-1]:.3f}", flush=True)
