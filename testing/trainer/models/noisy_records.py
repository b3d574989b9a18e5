"""TFRecord files of unequal length beside the module, and noise that is drawn for each example."""

import keras
import tensorflow as tf

from tfparallel_trainer import inputs

keras.config.set_floatx("float64")


def build_model():
    return keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)]
    )


def compile_model(model):
    model.compile(keras.optimizers.Adam(0.01), "mse")


def training_data(context):
    return inputs.Records(sorted(context.source_dir.glob("*.tfrecord")), parse).map(noisy)


def parse(record):
    features = tf.io.parse_single_example(record, {"x": tf.io.FixedLenFeature((3,), tf.float32)})
    x = tf.cast(features["x"], tf.float64)
    return x, tf.reduce_sum(x, keepdims=True)


def noisy(x, y, seed):
    if x[0] > 0:  # AutoGraph makes an operation of it
        x += tf.random.stateless_normal((3,), seed, dtype=tf.float64)
    return x, y
