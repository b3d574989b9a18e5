"""Handwritten digits from TFRecord files on a volume: each replica reads its own records alone."""

import os
import pathlib

import keras
import tensorflow as tf

from tfparallel_trainer import inputs

RECORDS = pathlib.Path(os.environ["RECORDS"])


def build_model():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def compile_model(model):
    model.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def training_data():
    return inputs.Records(sorted(RECORDS.glob("train-*.tfrecord")), parse)


def evaluation_data():
    return inputs.Records(sorted(RECORDS.glob("test-*.tfrecord")), parse)


def parse(record):
    features = {
        "image": tf.io.FixedLenFeature((), tf.string),
        "label": tf.io.FixedLenFeature((), tf.int64),
    }
    example = tf.io.parse_single_example(record, features)
    image = tf.io.decode_png(example["image"], channels=1)
    return tf.cast(tf.ensure_shape(image, (8, 8, 1)), tf.float32) / 16, example["label"]
