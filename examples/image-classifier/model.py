"""A ResNet-50 with the recipe of large classifiers: augmentation, warm-up, cosine decay, averages.

The data stands for your own: 1,797 digits, enlarged on the way to color images of 64 by 64 pixels.
"""

import keras
import tensorflow as tf
from sklearn import datasets, model_selection

from tfparallel_trainer import inputs

SIZE, CLASSES, STEPS = 64, 10, 90


def build_model():
    return keras.applications.ResNet50(
        weights=None, input_shape=(SIZE, SIZE, 3), classes=CLASSES, classifier_activation=None
    )


def compile_model(model):
    rate = keras.optimizers.schedules.CosineDecay(
        1e-4, STEPS, warmup_target=1e-3, warmup_steps=STEPS // 10
    )
    model.compile(
        optimizer=keras.optimizers.AdamW(rate, weight_decay=1e-2, use_ema=True, ema_momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def training_data():
    train_x, _, train_y, _ = examples()
    return inputs.Arrays(train_x, train_y).map(enlarged).map(augmented)


def evaluation_data():
    _, test_x, _, test_y = examples()
    return inputs.Arrays(test_x, test_y).map(enlarged)


def enlarged(image, label):
    image = tf.image.resize(tf.cast(image, tf.float32) / 16, (SIZE, SIZE))
    return tf.repeat(image, 3, axis=-1), label


def augmented(image, label, seed):
    padded = tf.pad(image, [[8, 8], [8, 8], [0, 0]])
    image = tf.image.stateless_random_crop(padded, (SIZE, SIZE, 3), seed)
    return tf.image.stateless_random_brightness(image, 0.2, seed), label


def examples():
    digits = datasets.load_digits()
    images = digits.images[..., None].astype("uint8")
    return model_selection.train_test_split(images, digits.target, test_size=0.2, random_state=0)
