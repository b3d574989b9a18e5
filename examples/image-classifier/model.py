"""A ResNet on color images, with augmentation, warm-up, cosine decay and averaged weights."""

import keras
import tensorflow as tf
from sklearn import datasets, model_selection

from tfparallel_trainer import inputs

BLOCKS = (2, 2, 2, 2)  # ResNet-18; (3, 4, 6, 3) is ResNet-34
SIZE, CLASSES, STEPS = 64, 10, 86


def build_model():
    image = keras.Input((SIZE, SIZE, 3))
    x = keras.layers.MaxPooling2D()(convolution(image, 64, stride=2))
    for stage, blocks in enumerate(BLOCKS):
        for block in range(blocks):
            x = residual(x, 64 * 2**stage, stride=2 if stage and not block else 1)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, keras.layers.Dense(CLASSES, activation="softmax")(x))


def residual(x, filters, stride):
    y = convolution(convolution(x, filters, stride=stride), filters, activation=None)
    if stride > 1 or x.shape[-1] != filters:
        x = convolution(x, filters, 1, stride, activation=None)
    return keras.layers.ReLU()(keras.layers.Add()([x, y]))


def convolution(x, filters, size=3, stride=1, activation="relu"):
    x = keras.layers.Conv2D(filters, size, stride, "same", use_bias=False)(x)
    # Over the whole batch; the default momentum averages over more steps than there are.
    x = keras.layers.BatchNormalization(momentum=0.9, synchronized=True)(x)
    return keras.layers.Activation(activation)(x)


def compile_model(model):
    rate = keras.optimizers.schedules.CosineDecay(1e-4, STEPS, warmup_target=1e-3, warmup_steps=9)
    optimizer = keras.optimizers.AdamW(rate, weight_decay=1e-2, use_ema=True, ema_momentum=0.9)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])


def training_data():
    return examples(0).map(augmented)


def evaluation_data():
    return examples(1)


def examples(part):
    """Handwritten digits take the place of your images."""
    x, y = datasets.load_digits(return_X_y=True)
    parts = model_selection.train_test_split(x.reshape(-1, 8, 8, 1), y, random_state=0)
    return inputs.Arrays(parts[part], parts[part + 2]).map(enlarged)


def enlarged(image, label):
    image = tf.image.resize(tf.cast(image, tf.float32) / 16, (SIZE, SIZE))
    return tf.repeat(image, 3, axis=-1), label


def augmented(image, label, seed):
    padded = tf.pad(image, [[8, 8], [8, 8], [0, 0]])
    return tf.image.stateless_random_crop(padded, (SIZE, SIZE, 3), seed), label
