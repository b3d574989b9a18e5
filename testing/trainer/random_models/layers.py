"""Tables of layers with random valid arguments, by the rank of the tensor that they take."""

import math
import random as randoms
from collections.abc import Callable, Mapping

from testing.trainer.random_models import spec

Shape = tuple[int, ...]
"""Without the axis of the batch."""
Drawing = tuple[spec.Construction, Shape] | None
"""A layer and the shape that it gives; None where it does not suit."""
Draw = Callable[[randoms.Random, Shape], Drawing]

_KERAS = "keras.layers."
_ACTIVATIONS = ("tanh", "relu", "gelu", "sigmoid", "softplus", "elu", "swish", "softsign", "selu")
_INITIALIZERS = (
    "'he_normal'",
    "'lecun_uniform'",
    "keras.initializers.Orthogonal(seed=3)",
    "keras.initializers.RandomNormal(stddev=0.3)",
    "keras.initializers.VarianceScaling(2.0, mode='fan_out')",
    "keras.initializers.TruncatedNormal(stddev=0.2)",
)
_REGULARIZERS = (
    "'l2'",
    "keras.regularizers.L1(0.003)",
    "keras.regularizers.L1L2(0.002, 0.004)",
    "keras.regularizers.L2(0.01)",
)
_CONSTRAINTS = (
    "keras.constraints.MaxNorm(1.0)",
    "keras.constraints.UnitNorm()",
    "keras.constraints.NonNeg()",
    "keras.constraints.MinMaxNorm(0.2, 1.5, rate=0.7)",
)


def is_drawn(random: randoms.Random, probability: float) -> bool:
    """Return whether something is part of the job."""
    return random.random() < probability


def layer(kind: str, options: Mapping[str, str], **required: object) -> spec.Construction:
    """Return a layer of Keras; values of `required` are Python's own."""
    name = kind if "." in kind or kind in _OWN else f"{_KERAS}{kind}"
    return spec.Construction(name, {key: repr(one) for key, one in required.items()}, dict(options))


_OWN = (
    "Counter",
    "MovingMean",
    "Shrunk",
    "Idle",
    "Pruned",
    "MeanActivity",
    "SumActivity",
    "Centered",
    "Scaled",
)


def weight_options(
    random: randoms.Random, *kinds: str, activation: bool = True, frozen: float = 0.05
) -> dict[str, str]:
    """Draw options of a layer's weights: kinds are kernel, bias, recurrent, ...."""
    options: dict[str, str] = {}
    if activation and is_drawn(random, 0.5):
        options["activation"] = repr(random.choice(_ACTIVATIONS))
    for kind in kinds:
        # Orthogonal and others need two axes, so biases keep to simple ones.
        initializers = _INITIALIZERS if kind != "bias" else ("'ones'", "'random_normal'")
        for option, values, probability in (
            ("initializer", initializers, 0.2),
            ("regularizer", _REGULARIZERS, 0.15),
            ("constraint", _CONSTRAINTS, 0.1),
        ):
            if is_drawn(random, probability):
                options[f"{kind}_{option}"] = random.choice(values)
    if "bias" in kinds and "bias_initializer" not in options and is_drawn(random, 0.15):
        options = {name: value for name, value in options.items() if not name.startswith("bias_")}
        options["use_bias"] = "False"
    if kinds and is_drawn(random, 0.08):
        options["activity_regularizer"] = random.choice(_REGULARIZERS)
    if is_drawn(random, frozen):
        options["trainable"] = "False"
    return options


def units(random: randoms.Random) -> int:
    """Draw a number of features: most divide by two."""
    return random.choice((2, 3, 4, 4, 6, 6, 8))


def dense(random: randoms.Random, shape: Shape) -> Drawing:
    count = units(random)
    return layer("Dense", weight_options(random, "kernel", "bias"), units=count), (
        *shape[:-1],
        count,
    )


def einsum_dense(random: randoms.Random, shape: Shape) -> Drawing:
    letters = "abcde"[: len(shape)]
    count = units(random)
    options = weight_options(random, "kernel")
    options |= {"bias_axes": "'z'"} if is_drawn(random, 0.6) else {}
    output: list[int | None] = [*shape[:-1], count]
    equation = f"y{letters},{letters[-1]}z->y{letters[:-1]}z"
    return layer("EinsumDense", options, equation=equation, output_shape=tuple(output)), (
        *shape[:-1],
        count,
    )


def same(kind: str, *choices: Mapping[str, object], weights: tuple[str, ...] = ()) -> Draw:
    """Draw a layer that keeps the shape, with one of some options."""

    def draw(random: randoms.Random, shape: Shape) -> Drawing:
        options = {name: repr(value) for name, value in random.choice(choices or ({},)).items()}
        options |= weight_options(random, *weights, activation=False) if weights else {}
        return layer(kind, options), shape

    return draw


def activation(random: randoms.Random, shape: Shape) -> Drawing:
    return layer("Activation", {}, activation=random.choice(_ACTIVATIONS)), shape


def softmax(random: randoms.Random, shape: Shape) -> Drawing:
    axis = random.choice([-1, *range(1, len(shape) + 1)])
    return layer("Softmax", {"axis": repr(axis)}), shape


def prelu(random: randoms.Random, shape: Shape) -> Drawing:
    options = {}
    if len(shape) > 1 and is_drawn(random, 0.5):
        options["shared_axes"] = repr(list(range(1, len(shape))))
    return layer("PReLU", {"alpha_initializer": "'ones'", **options}), shape


def batch_normalization(random: randoms.Random, shape: Shape) -> Drawing:
    options = {}
    if is_drawn(random, 0.3):
        options["momentum"] = "0.8"
    if is_drawn(random, 0.2):
        options["scale"] = "False"
    if is_drawn(random, 0.2):
        options["center"] = "False"
    if is_drawn(random, 0.1):
        options["trainable"] = "False"
    return layer("BatchNormalization", options, synchronized=True), shape


def layer_normalization(random: randoms.Random, shape: Shape) -> Drawing:
    options = {}
    if len(shape) > 1 and is_drawn(random, 0.3):
        options["axis"] = repr(random.choice(([-1], [1, -1], [1])))
    if is_drawn(random, 0.2):
        options["center"] = "False"
    if is_drawn(random, 0.2):
        options["gamma_regularizer"] = random.choice(_REGULARIZERS)
    return layer("LayerNormalization", options), shape


def group_normalization(random: randoms.Random, shape: Shape) -> Drawing:
    groups = [count for count in (1, 2, 3, 4) if shape[-1] % count == 0]
    return layer("GroupNormalization", {}, groups=random.choice(groups)), shape


def normalization(random: randoms.Random, shape: Shape) -> Drawing:
    mean = [round(random.uniform(-1, 1), 2) for _ in range(shape[-1])]
    variance = [round(random.uniform(0.5, 2), 2) for _ in range(shape[-1])]
    return layer("Normalization", {}, axis=-1, mean=mean, variance=variance), shape


def spectral(random: randoms.Random, shape: Shape) -> Drawing:
    inner = conv(random, shape) if len(shape) in (2, 3) else dense(random, shape)
    if inner is None:
        return None
    construction, output = inner
    options = {"power_iterations": "2"} if is_drawn(random, 0.3) else {}
    text = construction.without("trainable").text()
    return spec.Construction(f"{_KERAS}SpectralNormalization", {"layer": text}, options), output


def reshape(random: randoms.Random, shape: Shape) -> Drawing:
    total = math.prod(shape)
    targets = [(total,), *((first, total // first) for first in (2, 3, 4) if total % first == 0)]
    target = random.choice(targets)
    return layer("Reshape", {}, target_shape=target), target


def flatten(random: randoms.Random, shape: Shape) -> Drawing:
    return layer("Flatten", {}), (math.prod(shape),)


def permute(random: randoms.Random, shape: Shape) -> Drawing:
    order = list(range(1, len(shape) + 1))
    random.shuffle(order)
    return layer("Permute", {}, dims=tuple(order)), tuple(shape[place - 1] for place in order)


def repeat_vector(random: randoms.Random, shape: Shape) -> Drawing:
    count = random.choice((2, 3, 4))
    return layer("RepeatVector", {}, n=count), (count, *shape)


def discretization(random: randoms.Random, shape: Shape) -> Drawing:
    if len(shape) != 1:
        return None
    bounds = [-0.5, 0.2, 0.8]
    mode = random.choice(("multi_hot", "count"))
    return layer("Discretization", {}, bin_boundaries=bounds, output_mode=mode), (4,)


def window(random: randoms.Random, shape: Shape) -> tuple[int, int, str]:
    """Draw size, stride and padding of a window that fits all spatial axes."""
    size = random.choice([one for one in (1, 2, 3) if one <= min(shape[:-1])])
    stride = random.choice((1, 1, 2))
    return size, stride, random.choice(("valid", "same"))


def slide(length: int, size: int, stride: int, padding: str) -> int:
    """Return the length that a window gives."""
    return -(-length // stride) if padding == "same" else (length - size) // stride + 1


def conv(random: randoms.Random, shape: Shape) -> Drawing:
    axes = len(shape) - 1
    if min(shape[:-1]) < 2:
        return None
    size, stride, padding = window(random, shape)
    kind = random.choice(
        ("", "", "", "Transpose", "Separable", "Depthwise") if axes < 3 else ("", "", "Transpose")
    )
    count = units(random)
    options = weight_options(random, "bias")
    spatial = tuple(slide(length, size, stride, padding) for length in shape[:-1])
    if kind == "Depthwise":
        multiplier = random.choice((1, 2))
        options["depth_multiplier"] = repr(multiplier)
        construction = layer(
            f"DepthwiseConv{axes}D", options, kernel_size=size, strides=stride, padding=padding
        )
        return construction, (*spatial, shape[-1] * multiplier)
    if kind == "Transpose":
        spatial = tuple(
            length * stride if padding == "same" else length * stride + max(size - stride, 0)
            for length in shape[:-1]
        )
    elif stride == 1 and kind == "" and is_drawn(random, 0.2) and min(shape[:-1]) > 2 * size:
        options["dilation_rate"] = "2"
        size_dilated = 2 * (size - 1) + 1
        spatial = tuple(slide(length, size_dilated, 1, padding) for length in shape[:-1])
    if kind == "":
        options |= weight_options(random, "kernel", activation=False, frozen=0)
        if axes == 1 and is_drawn(random, 0.2) and padding == "valid":
            padding = "causal"
            spatial = (-(-shape[0] // stride),)
        if shape[-1] % 2 == 0 and count % 2 == 0 and is_drawn(random, 0.15):
            options["groups"] = "2"
    name = {"": f"Conv{axes}D", "Transpose": f"Conv{axes}DTranspose"}.get(
        kind, f"SeparableConv{axes}D"
    )
    construction = layer(
        name, options, filters=count, kernel_size=size, strides=stride, padding=padding
    )
    return construction, (*spatial, count)


def pooling(random: randoms.Random, shape: Shape) -> Drawing:
    axes = len(shape) - 1
    if min(shape[:-1]) < 2:
        return None
    size, stride, padding = window(random, shape)
    kind = random.choice(("Max", "Average"))
    construction = layer(
        f"{kind}Pooling{axes}D", {}, pool_size=size, strides=stride, padding=padding
    )
    return construction, (
        *(slide(length, size, stride, padding) for length in shape[:-1]),
        shape[-1],
    )


def adaptive_pooling(random: randoms.Random, shape: Shape) -> Drawing:
    axes = len(shape) - 1
    size = random.randint(1, min(shape[:-1]))
    kind = random.choice(("Max", "Average"))
    construction = layer(f"Adaptive{kind}Pooling{axes}D", {}, output_size=size)
    return construction, (*(size for _ in shape[:-1]), shape[-1])


def global_pooling(random: randoms.Random, shape: Shape) -> Drawing:
    kind = random.choice(("Max", "Average"))
    return layer(f"Global{kind}Pooling{len(shape) - 1}D", {}), shape[-1:]


def resized(kind: str, change: Callable[[int], int], argument: str, value: object) -> Draw:
    """Draw a layer that pads, crops or repeats all spatial axes."""

    def draw(random: randoms.Random, shape: Shape) -> Drawing:
        spatial = tuple(change(length) for length in shape[:-1])
        if min(spatial) < 1:
            return None
        construction = layer(f"{kind}{len(shape) - 1}D", {}, **{argument: value})
        return construction, (*spatial, shape[-1])

    return draw


def resizing(random: randoms.Random, shape: Shape) -> Drawing:
    height, width = random.choice((4, 5, 6)), random.choice((4, 6))
    kind = random.choice(("Resizing", "CenterCrop"))
    if kind == "CenterCrop" and (height > shape[0] or width > shape[1]):
        return None
    return layer(kind, {}, height=height, width=width), (height, width, shape[-1])


def recurrent(random: randoms.Random, shape: Shape) -> Drawing:
    kind = random.choice(("SimpleRNN", "GRU", "LSTM", "LSTM", "GRU"))
    count = random.choice((2, 3, 4, 4))
    options = weight_options(random, "kernel", "recurrent", "bias", activation=False)
    if is_drawn(random, 0.2):
        options["go_backwards"] = "True"
    if is_drawn(random, 0.15):
        options["unroll"] = "True"
    if kind == "GRU" and is_drawn(random, 0.3):
        options["reset_after"] = "False"
    if kind == "LSTM" and is_drawn(random, 0.3):
        options["unit_forget_bias"] = "False"
    sequences = is_drawn(random, 0.5)
    construction = layer(kind, options, units=count, return_sequences=sequences)
    if "go_backwards" not in options and is_drawn(random, 0.25):
        merge = random.choice(("concat", "sum", "mul", "ave"))
        width = 2 * count if merge == "concat" else count
        inner = construction.without("activity_regularizer").without("trainable").text()
        construction = spec.Construction(
            f"{_KERAS}Bidirectional", {"layer": inner, "merge_mode": repr(merge)}
        )
        count = width
    return construction, (shape[0], count) if sequences else (count,)


def cells(random: randoms.Random, shape: Shape) -> Drawing:
    counts = [random.choice((2, 3, 4)) for _ in range(random.choice((1, 2)))]
    kinds = [random.choice(("SimpleRNNCell", "GRUCell", "LSTMCell")) for _ in counts]
    texts = [f"{_KERAS}{kind}({count})" for kind, count in zip(kinds, counts, strict=True)]
    cell = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    sequences = is_drawn(random, 0.5)
    construction = spec.Construction(
        f"{_KERAS}RNN", {"cell": cell, "return_sequences": repr(sequences)}
    )
    return construction, (shape[0], counts[-1]) if sequences else (counts[-1],)


def conv_recurrent(random: randoms.Random, shape: Shape) -> Drawing:
    axes = len(shape) - 2
    count = random.choice((2, 4))
    sequences = is_drawn(random, 0.5)
    construction = layer(
        f"ConvLSTM{axes}D",
        weight_options(random, "kernel", "bias", activation=False),
        filters=count,
        kernel_size=2,
        padding="same",
        return_sequences=sequences,
    )
    output = (*shape[1:-1], count)
    return construction, (shape[0], *output) if sequences else output


def time_distributed(random: randoms.Random, shape: Shape) -> Drawing:
    inner = dense(random, shape[1:]) if len(shape) == 2 else conv(random, shape[1:])
    if inner is None:
        return None
    construction, output = inner
    text = construction.without("activity_regularizer").without("trainable").text()
    return spec.Construction(f"{_KERAS}TimeDistributed", {"layer": text}), (shape[0], *output)


def inner_model(random: randoms.Random, shape: Shape) -> Drawing:
    """Draw a model of two layers that is a layer itself."""
    first = dense(random, shape)
    assert first is not None
    second = dense(random, first[1])
    assert second is not None
    names = ("inner", "outer")
    texts = [
        drawing[0].without("activity_regularizer").text(name=repr(name))
        for drawing, name in zip((first, second), names, strict=True)
    ]
    stack = f"[keras.Input({shape}), {', '.join(texts)}]"
    return spec.Construction("keras.Sequential", {"layers": stack}), second[1]


_OWN_LAYERS: tuple[Draw, ...] = (
    same("Counter"),
    same("MovingMean"),
    same("Shrunk"),
    same("Idle"),
    same("Pruned"),
    same("MeanActivity"),
    same("SumActivity"),
    same("Centered"),
    same("Scaled", {}, {"start": 0.7}),
)

_ANY: tuple[Draw, ...] = (
    dense,
    dense,
    einsum_dense,
    activation,
    softmax,
    prelu,
    batch_normalization,
    batch_normalization,
    layer_normalization,
    group_normalization,
    normalization,
    spectral,
    reshape,
    same("ReLU", {}, {"negative_slope": 0.2}, {"max_value": 1.0}, {"threshold": 0.1}),
    same("LeakyReLU", {"negative_slope": 0.1}),
    same("ELU", {}, {"alpha": 0.5}),
    same("RMSNormalization"),
    same("UnitNormalization"),
    same("Identity"),
    same("Dropout", {"rate": 0.0}),
    same("GaussianNoise", {"stddev": 0.0}),
    same("ActivityRegularization", {"l2": 0.01}, {"l1": 0.005}),
    same("Rescaling", {"scale": 0.5, "offset": 0.1}),
    inner_model,
)

BY_RANK: Mapping[int, tuple[Draw, ...]] = {
    1: (*_ANY, repeat_vector, discretization),
    2: (
        *_ANY,
        conv,
        conv,
        pooling,
        adaptive_pooling,
        global_pooling,
        recurrent,
        recurrent,
        recurrent,
        cells,
        time_distributed,
        permute,
        flatten,
        resized("Cropping", lambda length: length - 2, "cropping", 1),
        resized("ZeroPadding", lambda length: length + 2, "padding", 1),
        resized("UpSampling", lambda length: length * 2, "size", 2),
        same("Masking", {"mask_value": 0.0}),
        same("SpatialDropout1D", {"rate": 0.0}),
    ),
    3: (
        *_ANY,
        conv,
        conv,
        conv,
        pooling,
        pooling,
        adaptive_pooling,
        global_pooling,
        permute,
        flatten,
        resizing,
        time_distributed,
        conv_recurrent,
        resized("Cropping", lambda length: length - 2, "cropping", 1),
        resized("ZeroPadding", lambda length: length + 2, "padding", 1),
        resized("UpSampling", lambda length: length * 2, "size", 2),
    ),
    4: (
        *_ANY,
        conv,
        pooling,
        adaptive_pooling,
        global_pooling,
        flatten,
        time_distributed,
        conv_recurrent,
        conv_recurrent,
        resized("ZeroPadding", lambda length: length + 2, "padding", 1),
    ),
}
"""What takes a tensor of a rank and gives one."""

MERGES = ("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Concatenate")
ATTENTION = ("MultiHeadAttention", "GroupQueryAttention", "Attention", "AdditiveAttention")


def draw(random: randoms.Random, shape: Shape) -> Drawing:
    """Draw a layer for a tensor; None where what was drawn does not suit."""
    if is_drawn(random, 0.12):
        return random.choice(_OWN_LAYERS)(random, shape)
    return random.choice(BY_RANK[len(shape)])(random, shape)


def merge(random: randoms.Random, shape: Shape) -> tuple[spec.Construction, Shape]:
    """Draw a layer that takes two tensors of a shape."""
    kind = random.choice(MERGES)
    width = 2 * shape[-1] if kind == "Concatenate" else shape[-1]
    return layer(kind, {}), (*shape[:-1], width)


def attention(random: randoms.Random, width: int) -> tuple[spec.Construction, str]:
    """Draw a layer that attends from one sequence to another; returns it and its call."""
    kind = random.choice(ATTENTION)
    if kind == "MultiHeadAttention":
        options = weight_options(random, "kernel", "bias", activation=False)
        causal = ", use_causal_mask=True" if is_drawn(random, 0.3) else ""
        construction = layer(kind, options, num_heads=2, key_dim=3)
        return construction, f"{{layer}}({{0}}, {{1}}{causal})"
    if kind == "GroupQueryAttention":
        construction = layer(
            kind, {}, head_dim=2, num_query_heads=4, num_key_value_heads=random.choice((1, 2, 4))
        )
        return construction, "{layer}({0}, {1})"
    options = {"use_scale": "True"} if is_drawn(random, 0.5) else {}
    if kind == "Attention" and is_drawn(random, 0.2):
        options["score_mode"] = "'concat'"
    return layer(kind, options), "{layer}([{0}, {1}])"
