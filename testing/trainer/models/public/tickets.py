"""Three inputs, two outputs with losses of different weights.

Source: keras.io, the guide "The Functional API", "Manipulate complex graph topologies".
"""

import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")


def build_model():
    title_input = keras.Input((6,), name="title", dtype="int32")
    body_input = keras.Input((9,), name="body", dtype="int32")
    tags_input = keras.Input((5,), name="tags")
    title_features = layers.LSTM(8)(layers.Embedding(20, 6)(title_input))
    body_features = layers.LSTM(4)(layers.Embedding(20, 6)(body_input))
    x = layers.concatenate([title_features, body_features, tags_input])
    priority_pred = layers.Dense(1, name="priority")(x)
    department_pred = layers.Dense(4, name="department")(x)
    return keras.Model(
        inputs=[title_input, body_input, tags_input],
        outputs={"priority": priority_pred, "department": department_pred},
    )


def compile_model(model):
    model.compile(
        optimizer=keras.optimizers.RMSprop(1e-3),
        loss={
            "priority": keras.losses.BinaryCrossentropy(from_logits=True),
            "department": keras.losses.CategoricalCrossentropy(from_logits=True),
        },
        loss_weights={"priority": 1.0, "department": 0.2},
    )


def training_data():
    random = np.random.default_rng(23)
    x = [
        random.integers(0, 20, (24, 6)).astype("int32"),
        random.integers(0, 20, (24, 9)).astype("int32"),
        random.integers(0, 2, (24, 5)).astype("float64"),
    ]
    departments = np.eye(4)[random.integers(0, 4, 24)]
    return x, {"priority": random.integers(0, 2, (24, 1)), "department": departments}
