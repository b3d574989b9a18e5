"""A model whose `call` is Python: no graph of layers.

Source: TensorFlow, tutorial "TensorFlow 2 quickstart for experts".
"""

import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")


@keras.saving.register_keras_serializable("public")
class MyModel(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.conv1 = layers.Conv2D(4, 3, activation="relu")
        self.flatten = layers.Flatten()
        self.d1 = layers.Dense(16, activation="relu")
        self.d2 = layers.Dense(10)

    def call(self, x):
        return self.d2(self.d1(self.flatten(self.conv1(x))))


def build_model():
    return MyModel()


def compile_model(model):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = [keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")]
    model.compile(keras.optimizers.Adam(), loss, metrics=metrics)


def training_data():
    random = np.random.default_rng(40)
    return random.uniform(size=(24, 8, 8, 1)), random.integers(0, 10, 24)
