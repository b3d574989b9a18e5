"""Layers, losses and callbacks that users write; a model file gets the source of those it uses."""

import keras


@keras.saving.register_keras_serializable("random_models")
class Counter(keras.layers.Layer):
    """Counts its training calls, and scales by the count."""

    def build(self, shape):
        self.count = self.add_weight(
            shape=(), initializer="zeros", dtype="int32", trainable=False, name="count"
        )

    def call(self, x, training=False):
        if training:
            self.count.assign_add(1)
        return x / (1.0 + 0.1 * keras.ops.cast(self.count, x.dtype))


@keras.saving.register_keras_serializable("random_models")
class MovingMean(keras.layers.Layer):
    """Subtracts a moving average of the batches' means."""

    def build(self, shape):
        self.mean = self.add_weight(
            shape=(shape[-1],), initializer="zeros", trainable=False, name="mean"
        )

    def call(self, x, training=False):
        if training:
            batch = keras.ops.mean(x, axis=tuple(range(x.ndim - 1)))
            self.mean.assign(0.9 * self.mean + 0.1 * batch)
        return x - keras.ops.stop_gradient(self.mean)


@keras.saving.register_keras_serializable("random_models")
class Shrunk(keras.layers.Layer):
    """Multiplies by a kernel that each training call shrinks."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1],), initializer="ones", name="kernel")

    def call(self, x, training=False):
        if training:
            self.kernel.assign(0.95 * self.kernel)
        return x * self.kernel


@keras.saving.register_keras_serializable("random_models")
class Idle(keras.layers.Layer):
    """Scales by one weight, and has another without a gradient."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")
        self.idle = self.add_weight(shape=(3,), initializer="ones", name="idle")

    def call(self, x):
        return x * self.scale


@keras.saving.register_keras_serializable("random_models")
class Pruned(keras.layers.Layer):
    """Multiplies by a mask of bools, which the callback Prune sets."""

    def build(self, shape):
        self.mask = self.add_weight(
            shape=(shape[-1],), initializer="ones", dtype="bool", trainable=False, name="mask"
        )

    def call(self, x):
        return x * keras.ops.cast(self.mask, x.dtype)


@keras.saving.register_keras_serializable("random_models")
class MeanActivity(keras.layers.Layer):
    """Adds the mean of its activity to the loss."""

    def call(self, x):
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        return x


@keras.saving.register_keras_serializable("random_models")
class SumActivity(keras.layers.Layer):
    """Adds the sum of its activity to the loss while it trains."""

    def call(self, x, training=False):
        if training:
            self.add_loss(0.01 * keras.ops.sum(keras.ops.square(x)))
        return x


@keras.saving.register_keras_serializable("random_models")
class Centered(keras.layers.Layer):
    """Subtracts the mean over the batch while it trains."""

    def call(self, x, training=False):
        return x - keras.ops.mean(x, axis=0, keepdims=True) if training else x


@keras.saving.register_keras_serializable("random_models")
class Scaled(keras.layers.Layer):
    """Multiplies by a trained number that has no axis."""

    def __init__(self, start=1.0, **options):
        super().__init__(**options)
        self.start = start

    def build(self, shape):
        initializer = keras.initializers.Constant(self.start)
        self.scale = self.add_weight(shape=(), initializer=initializer, name="scale")

    def call(self, x):
        return x * self.scale

    def get_config(self):
        return {**super().get_config(), "start": self.start}


@keras.saving.register_keras_serializable("random_models")
def absolute(y_true, y_pred):
    return keras.ops.mean(keras.ops.abs(y_true - y_pred), axis=-1)


@keras.saving.register_keras_serializable("random_models")
def elementwise(y_true, y_pred):
    return keras.ops.square(y_true - y_pred)


@keras.saving.register_keras_serializable("random_models")
def per_positive(y_true, y_pred):
    positives = keras.ops.sum(keras.ops.cast(y_true > 1.5, y_pred.dtype))
    return keras.ops.square(y_true - y_pred) / keras.ops.maximum(positives, 1.0)


@keras.saving.register_keras_serializable("random_models")
class Quantile(keras.losses.Loss):
    def __init__(self, quantile=0.7, **options):
        super().__init__(**options)
        self.quantile = quantile

    def call(self, y_true, y_pred):
        error = y_true - y_pred
        return keras.ops.maximum(self.quantile * error, (self.quantile - 1.0) * error)

    def get_config(self):
        return {**super().get_config(), "quantile": self.quantile}


@keras.saving.register_keras_serializable("random_models")
class Positive(keras.losses.MeanSquaredError):
    """Counts positive targets only."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        is_positive = keras.ops.cast(y_true > 0.0, y_pred.dtype)
        return super().__call__(y_true * is_positive, y_pred * is_positive, sample_weight)


class SetRate(keras.callbacks.Callback):
    """Changes the learning rate with the batches."""

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 1:
            self.model.optimizer.learning_rate = 0.03


class ScaleWeights(keras.callbacks.Callback):
    """Writes weights at the end of each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        weight = self.model.trainable_variables[0]
        weight.assign(0.9 * weight)


class Freeze(keras.callbacks.Callback):
    """Freezes a layer at the second epoch, without compiling again."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            next(layer for layer in self.model.layers if layer.weights).trainable = False


class Prune(keras.callbacks.Callback):
    """Sets masks at the second epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        for layer in self.model.layers:
            if epoch == 1 and isinstance(layer, Pruned):
                layer.mask.assign([index % 2 == 0 for index in range(layer.mask.shape[0])])


class Stop(keras.callbacks.Callback):
    """Stops in the second epoch."""

    def __init__(self):
        super().__init__()
        self.batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if self.batches == 3:
            self.model.stop_training = True
