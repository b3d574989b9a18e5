"""Attention within windows of an image, which are shifted in every second block.

Source: keras.io, "Image classification with Swin Transformers".
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
SIZE, WINDOW, SHIFT, WIDTH = 8, 4, 2, 8


def window_partition(x, window_size):
    _, height, width, channels = x.shape
    rows, columns = height // window_size, width // window_size
    x = ops.reshape(x, (-1, rows, window_size, columns, window_size, channels))
    return ops.reshape(ops.transpose(x, (0, 1, 3, 2, 4, 5)), (-1, window_size**2, channels))


def window_reverse(windows, window_size, height, width, channels):
    rows, columns = height // window_size, width // window_size
    x = ops.reshape(windows, (-1, rows, columns, window_size, window_size, channels))
    return ops.reshape(ops.transpose(x, (0, 1, 3, 2, 4, 5)), (-1, height, width, channels))


@keras.saving.register_keras_serializable("public")
class WindowAttention(layers.Layer):
    def __init__(self, dim, window_size, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.dim, self.window_size, self.num_heads = dim, window_size, num_heads
        self.scale = (dim // num_heads) ** -0.5

    def build(self, shape):
        self.qkv = layers.Dense(self.dim * 3, use_bias=True)
        self.qkv.build(shape)
        self.proj = layers.Dense(self.dim)
        self.proj.build(shape)
        self.relative_position_bias_table = self.add_weight(
            shape=((2 * self.window_size - 1) ** 2, self.num_heads), initializer="normal"
        )
        places = np.stack(np.meshgrid(*[np.arange(self.window_size)] * 2, indexing="ij"))
        flat = places.reshape(2, -1)
        relative = (flat[:, :, None] - flat[:, None, :]).transpose(1, 2, 0) + self.window_size - 1
        self.relative_position_index = (
            relative[..., 0] * (2 * self.window_size - 1) + relative[..., 1]
        )

    def call(self, x, mask=None):
        size, head_dim = x.shape[1], self.dim // self.num_heads
        qkv = ops.reshape(self.qkv(x), (-1, size, 3, self.num_heads, head_dim))
        q, k, v = ops.unstack(ops.transpose(qkv, (2, 0, 3, 1, 4)), 3)
        attn = ops.matmul(q * self.scale, ops.transpose(k, (0, 1, 3, 2)))
        bias = ops.take(
            self.relative_position_bias_table, self.relative_position_index.reshape(-1), 0
        )
        bias = ops.transpose(ops.reshape(bias, (size, size, -1)), (2, 0, 1))
        attn = attn + ops.expand_dims(bias, 0)
        if mask is not None:
            count = mask.shape[0]
            attn = ops.reshape(attn, (-1, count, self.num_heads, size, size))
            attn = attn + ops.cast(ops.expand_dims(ops.expand_dims(mask, 1), 0), attn.dtype)
            attn = ops.reshape(attn, (-1, self.num_heads, size, size))
        x = ops.transpose(ops.matmul(ops.softmax(attn), v), (0, 2, 1, 3))
        return self.proj(ops.reshape(x, (-1, size, self.dim)))

    def get_config(self):
        sizes = {"dim": self.dim, "window_size": self.window_size, "num_heads": self.num_heads}
        return {**super().get_config(), **sizes}


def shift_mask():
    regions = np.zeros((SIZE, SIZE))
    parts = (slice(0, -WINDOW), slice(-WINDOW, -SHIFT), slice(-SHIFT, None))
    for count, (rows, columns) in enumerate((a, b) for a in parts for b in parts):
        regions[rows, columns] = count
    edge = SIZE // WINDOW
    windows = (
        regions.reshape(edge, WINDOW, edge, WINDOW).transpose(0, 2, 1, 3).reshape(-1, WINDOW**2)
    )
    return np.where(windows[:, None, :] != windows[:, :, None], -100.0, 0.0)


@keras.saving.register_keras_serializable("public")
class SwinTransformer(layers.Layer):
    def __init__(self, shift_size, **kwargs):
        super().__init__(**kwargs)
        self.shift_size = shift_size
        self.norm1 = layers.LayerNormalization(epsilon=1e-5)
        self.attn = WindowAttention(WIDTH, WINDOW, 2)
        self.norm2 = layers.LayerNormalization(epsilon=1e-5)
        self.mlp = keras.Sequential([layers.Dense(16, activation="gelu"), layers.Dense(WIDTH)])

    def call(self, x):
        skip = x
        x = self.norm1(x)
        if self.shift_size:
            x = ops.roll(x, shift=(-self.shift_size, -self.shift_size), axis=(1, 2))
        windows = window_partition(x, WINDOW)
        mask = ops.convert_to_tensor(shift_mask()) if self.shift_size else None
        x = window_reverse(self.attn(windows, mask=mask), WINDOW, SIZE, SIZE, WIDTH)
        if self.shift_size:
            x = ops.roll(x, shift=(self.shift_size, self.shift_size), axis=(1, 2))
        x = skip + x
        return x + self.mlp(self.norm2(x))

    def get_config(self):
        return {**super().get_config(), "shift_size": self.shift_size}


@keras.saving.register_keras_serializable("public")
class PatchMerging(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.linear_trans = layers.Dense(2 * WIDTH, use_bias=False)

    def call(self, x):
        parts = [x[:, row::2, column::2, :] for column in range(2) for row in range(2)]
        return self.linear_trans(ops.concatenate(parts, axis=-1))


def build_model():
    inputs = keras.Input((2 * SIZE, 2 * SIZE, 3))
    x = layers.Conv2D(WIDTH, 2, strides=2)(inputs)
    x = SwinTransformer(0)(x)
    x = SwinTransformer(SHIFT)(x)
    x = layers.GlobalAveragePooling2D()(PatchMerging()(x))
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(x))


def compile_model(model):
    model.compile(
        keras.optimizers.AdamW(1e-3, weight_decay=1e-4),
        keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
        metrics=["accuracy"],
    )


def training_data():
    random = np.random.default_rng(7)
    return random.normal(size=(24, 16, 16, 3)), np.eye(3)[random.integers(0, 3, 24)]
