"""A deep network with skip connections over 1,797 handwritten digits that scikit-learn ships."""

import keras
from sklearn import datasets, model_selection

BLOCKS = 8
CHANNELS = 24


def build_model():
    image = keras.Input((8, 8, 1))
    x = keras.layers.Conv2D(CHANNELS, 3, padding="same", activation="relu")(image)
    for _ in range(BLOCKS):
        x = block(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, keras.layers.Dense(10)(x))


def block(x):
    """Two convolutions and a way around them."""
    y = keras.layers.GroupNormalization(groups=4)(x)
    y = keras.layers.Conv2D(CHANNELS, 3, padding="same", activation="relu")(y)
    y = keras.layers.Conv2D(CHANNELS, 3, padding="same")(y)
    return keras.layers.Add()([x, y])


def compile_model(model):
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def training_data():
    x, _, y, _ = _split()
    return x, y


def evaluation_data():
    _, x, _, y = _split()
    return x, y


def _split():
    digits = datasets.load_digits()
    images = (digits.images[..., None] / 16).astype("float32")
    return model_selection.train_test_split(
        images, digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )
