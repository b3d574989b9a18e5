"""Handwritten digits on several workers, by a script that was written for Keras' own fit."""

import keras
import tensorflow as tf
from sklearn import datasets, model_selection

import tfparallel_trainer

strategy = tf.distribute.MultiWorkerMirroredStrategy()

keras.utils.set_random_seed(7)
digits = datasets.load_digits()
train_x, test_x, train_y, test_y = model_selection.train_test_split(
    (digits.images / 16.0).astype("float32"), digits.target, test_size=360, random_state=7
)

with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((8, 8)),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

data = (test_x, test_y)
history = tfparallel_trainer.fit(model, train_x, train_y, 32, epochs=8, validation_data=data)
print(f"accuracy {history.history['val_accuracy'][-1]:.3f} on {len(test_x)} images", flush=True)
