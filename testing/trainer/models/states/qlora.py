"""A quantized layer that is fine-tuned by LoRA from initial weights."""

import keras
import numpy as np
from keras import layers


def build_model():
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(16, name="base"), layers.Dense(2, name="head")]
    )
    base = model.get_layer("base")
    base.quantize("int8")
    base.enable_lora(2)
    return model


def compile_model(model):
    model.compile(keras.optimizers.SGD(0.05), "mse")


def training_data():
    random = np.random.default_rng(0)
    return (
        random.normal(size=(8, 8)).astype("float32"),
        random.normal(size=(8, 2)).astype("float32"),
    )
