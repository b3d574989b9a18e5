"""Keras' fit under MirroredStrategy, with its usual callbacks, then saved and loaded.

Source: TensorFlow, tutorial "Distributed training with Keras".
"""

import os

import numpy as np
import tensorflow as tf
from sklearn import datasets

EPOCHS = 4


def load_data():
    """Handwritten digits, scaled to the 28 by 28 pixels of MNIST; the last 297 are for tests."""
    digits = datasets.load_digits()
    images = np.pad(np.kron(digits.images * 15, np.ones((3, 3))), ((0, 0), (2, 2), (2, 2)))
    images = images[..., None].astype("uint8")
    return (images[:1500], digits.target[:1500]), (images[1500:], digits.target[1500:])


def scale(image, label):
    return tf.cast(image, tf.float32) / 255, label


train, test = load_data()

strategy = tf.distribute.MirroredStrategy()
print(f"Number of devices: {strategy.num_replicas_in_sync}", flush=True)
batch_size = 64 * strategy.num_replicas_in_sync

train_dataset = tf.data.Dataset.from_tensor_slices(train).map(scale).cache()
train_dataset = train_dataset.shuffle(10000).batch(batch_size)
eval_dataset = tf.data.Dataset.from_tensor_slices(test).map(scale).batch(batch_size)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(32, 3, activation="relu", input_shape=(28, 28, 1)),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.Adam(),
        metrics=["accuracy"],
    )

checkpoint_dir = "./training_checkpoints"
checkpoint_prefix = os.path.join(checkpoint_dir, "ckpt_{epoch}")


def decay(epoch):
    return 1e-3 if epoch < 3 else 1e-4


class PrintLR(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        rate = model.optimizer.lr.numpy()
        print(f"Learning rate for epoch {epoch + 1} is {rate}", flush=True)


callbacks = [
    tf.keras.callbacks.TensorBoard(log_dir="./logs"),
    tf.keras.callbacks.ModelCheckpoint(filepath=checkpoint_prefix, save_weights_only=True),
    tf.keras.callbacks.LearningRateScheduler(decay),
    PrintLR(),
]
model.fit(train_dataset, epochs=EPOCHS, callbacks=callbacks, verbose=2)

model.load_weights(tf.train.latest_checkpoint(checkpoint_dir))
_, accuracy = model.evaluate(eval_dataset, verbose=0)

path = "saved_model/"
model.save(path, save_format="tf")
_, unreplicated = tf.keras.models.load_model(path).evaluate(eval_dataset, verbose=0)
with strategy.scope():
    _, replicated = tf.keras.models.load_model(path).evaluate(eval_dataset, verbose=0)
assert accuracy == unreplicated == replicated
print(f"accuracy {accuracy:.3f}", flush=True)
