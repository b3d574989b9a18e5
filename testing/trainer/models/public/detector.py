"""A pyramid of features with heads of classes and boxes that all its levels share.

Source: keras.io, "Object Detection with RetinaNet".
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
CLASSES, ANCHORS = 3, 2


def build_head(output_filters, bias_init):
    head = keras.Sequential([keras.Input((None, None, 6))])
    kernel_init = keras.initializers.RandomNormal(0.0, 0.1)
    head.add(layers.Conv2D(6, 3, padding="same", kernel_initializer=kernel_init))
    head.add(layers.ReLU())
    head.add(
        layers.Conv2D(
            output_filters,
            3,
            padding="same",
            kernel_initializer=kernel_init,
            bias_initializer=bias_init,
        )
    )
    return head


@keras.saving.register_keras_serializable("public")
class RetinaNetBoxLoss(keras.losses.Loss):
    """Smooth L1 loss."""

    def __init__(self, delta=1.0, name="RetinaNetBoxLoss", **kwargs):
        super().__init__(name=name)
        self._delta = delta

    def call(self, y_true, y_pred):
        absolute = ops.abs(y_true - y_pred)
        loss = ops.where(absolute < self._delta, 0.5 * absolute**2, absolute - 0.5)
        return ops.sum(loss, axis=-1)


@keras.saving.register_keras_serializable("public")
class RetinaNetClassificationLoss(keras.losses.Loss):
    """Focal loss."""

    def __init__(self, alpha=0.25, gamma=2.0, name="RetinaNetClassificationLoss", **kwargs):
        super().__init__(name=name)
        self._alpha, self._gamma = alpha, gamma

    def call(self, y_true, y_pred):
        cross_entropy = ops.maximum(y_pred, 0) - y_pred * y_true + ops.softplus(-ops.abs(y_pred))
        probs = ops.sigmoid(y_pred)
        alpha = ops.where(y_true == 1.0, self._alpha, 1.0 - self._alpha)
        pt = ops.where(y_true == 1.0, probs, 1 - probs)
        return ops.sum(alpha * (1.0 - pt) ** self._gamma * cross_entropy, axis=-1)


def build_model():
    images = keras.Input((16, 16, 3))
    c3 = layers.Conv2D(4, 3, 2, "same", activation="relu")(images)
    c4 = layers.Conv2D(6, 3, 2, "same", activation="relu")(c3)
    p3, p4 = layers.Conv2D(6, 1)(c3), layers.Conv2D(6, 1)(c4)
    p3 = layers.Conv2D(6, 3, padding="same")(p3 + layers.UpSampling2D(2)(p4))
    p4 = layers.Conv2D(6, 3, padding="same")(p4)
    prior = keras.initializers.Constant(-np.log((1 - 0.01) / 0.01))
    cls_head, box_head = build_head(ANCHORS * CLASSES, prior), build_head(ANCHORS * 4, "zeros")
    classes, boxes = [], []
    for feature in (p3, p4):
        classes.append(layers.Reshape((-1, CLASSES))(cls_head(feature)))
        boxes.append(layers.Reshape((-1, 4))(box_head(feature)))
    outputs = {
        "boxes": layers.Concatenate(axis=1, name="boxes")(boxes),
        "classes": layers.Concatenate(axis=1, name="classes")(classes),
    }
    return keras.Model(images, outputs)


def compile_model(model):
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9, clipnorm=10.0),
        {"boxes": RetinaNetBoxLoss(), "classes": RetinaNetClassificationLoss()},
    )


def training_data():
    random = np.random.default_rng(24)
    places = ANCHORS * (8 * 8 + 4 * 4)
    y = {
        "boxes": random.normal(size=(24, places, 4)),
        "classes": np.eye(CLASSES)[random.integers(0, CLASSES, (24, places))],
    }
    return random.normal(size=(24, 16, 16, 3)), y
