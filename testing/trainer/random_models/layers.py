"""Tables of layers with random valid arguments, by the rank of the tensor that they take."""

import math
import random as randoms
from collections.abc import Mapping

from testing.trainer.random_models import draws, spatial, spec


def dense(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    count = draws.units(random)
    return draws.layer("Dense", draws.weight_options(random, "kernel", "bias"), units=count), (
        *shape[:-1],
        count,
    )


def einsum_dense(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    letters = "abcde"[: len(shape)]
    count = draws.units(random)
    options = draws.weight_options(random, "kernel")
    options |= {"bias_axes": "'z'"} if draws.is_drawn(random, 0.6) else {}
    output: list[int | None] = [*shape[:-1], count]
    equation = f"y{letters},{letters[-1]}z->y{letters[:-1]}z"
    return draws.layer("EinsumDense", options, equation=equation, output_shape=tuple(output)), (
        *shape[:-1],
        count,
    )


def same(kind: str, *choices: Mapping[str, object], weights: tuple[str, ...] = ()) -> draws.Draw:
    """Draw a layer that keeps the shape, with one of some options."""

    def draw(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
        options = {name: repr(value) for name, value in random.choice(choices or ({},)).items()}
        options |= draws.weight_options(random, *weights, activation=False) if weights else {}
        return draws.layer(kind, options), shape

    return draw


def activation(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    return draws.layer("Activation", {}, activation=random.choice(draws.ACTIVATIONS)), shape


def softmax(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    axis = random.choice([-1, *range(1, len(shape) + 1)])
    return draws.layer("Softmax", {"axis": repr(axis)}), shape


def prelu(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    options = {}
    if len(shape) > 1 and draws.is_drawn(random, 0.5):
        options["shared_axes"] = repr(list(range(1, len(shape))))
    return draws.layer("PReLU", {"alpha_initializer": "'ones'", **options}), shape


def batch_normalization(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    options = {}
    if draws.is_drawn(random, 0.3):
        options["momentum"] = "0.8"
    if draws.is_drawn(random, 0.2):
        options["scale"] = "False"
    if draws.is_drawn(random, 0.2):
        options["center"] = "False"
    if draws.is_drawn(random, 0.1):
        options["trainable"] = "False"
    return draws.layer("BatchNormalization", options, synchronized=True), shape


def layer_normalization(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    options = {}
    if len(shape) > 1 and draws.is_drawn(random, 0.3):
        options["axis"] = repr(random.choice(([-1], [1, -1], [1])))
    if draws.is_drawn(random, 0.2):
        options["center"] = "False"
    if draws.is_drawn(random, 0.2):
        options["gamma_regularizer"] = random.choice(draws.REGULARIZERS)
    return draws.layer("LayerNormalization", options), shape


def group_normalization(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    groups = [count for count in (1, 2, 3, 4) if shape[-1] % count == 0]
    return draws.layer("GroupNormalization", {}, groups=random.choice(groups)), shape


def normalization(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    mean = [round(random.uniform(-1, 1), 2) for _ in range(shape[-1])]
    variance = [round(random.uniform(0.5, 2), 2) for _ in range(shape[-1])]
    return draws.layer("Normalization", {}, axis=-1, mean=mean, variance=variance), shape


def spectral(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    inner = spatial.conv(random, shape) if len(shape) in (2, 3) else dense(random, shape)
    if inner is None:
        return None
    construction, output = inner
    options = {"power_iterations": "2"} if draws.is_drawn(random, 0.3) else {}
    text = construction.without("trainable").text()
    return spec.Construction(
        f"{draws.KERAS}SpectralNormalization", {"layer": text}, options
    ), output


def reshape(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    total = math.prod(shape)
    targets = [(total,), *((first, total // first) for first in (2, 3, 4) if total % first == 0)]
    target = random.choice(targets)
    return draws.layer("Reshape", {}, target_shape=target), target


def flatten(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    return draws.layer("Flatten", {}), (math.prod(shape),)


def permute(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    order = list(range(1, len(shape) + 1))
    random.shuffle(order)
    return draws.layer("Permute", {}, dims=tuple(order)), tuple(shape[axis - 1] for axis in order)


def repeat_vector(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    count = random.choice((2, 3, 4))
    return draws.layer("RepeatVector", {}, n=count), (count, *shape)


def discretization(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    if len(shape) != 1:
        return None
    bounds = [-0.5, 0.2, 0.8]
    mode = random.choice(("multi_hot", "count"))
    return draws.layer("Discretization", {}, bin_boundaries=bounds, output_mode=mode), (4,)


def time_distributed(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    inner = dense(random, shape[1:]) if len(shape) == 2 else spatial.conv(random, shape[1:])
    if inner is None:
        return None
    construction, output = inner
    text = construction.without("activity_regularizer").without("trainable").text()
    return spec.Construction(f"{draws.KERAS}TimeDistributed", {"layer": text}), (shape[0], *output)


def inner_model(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
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


_OWN_LAYERS: tuple[draws.Draw, ...] = (
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

_ANY: tuple[draws.Draw, ...] = (
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

BY_RANK: Mapping[int, tuple[draws.Draw, ...]] = {
    1: (*_ANY, repeat_vector, discretization),
    2: (
        *_ANY,
        spatial.conv,
        spatial.conv,
        spatial.pooling,
        spatial.adaptive_pooling,
        spatial.global_pooling,
        spatial.recurrent,
        spatial.recurrent,
        spatial.recurrent,
        spatial.cells,
        time_distributed,
        permute,
        flatten,
        spatial.resized("Cropping", lambda length: length - 2, "cropping", 1),
        spatial.resized("ZeroPadding", lambda length: length + 2, "padding", 1),
        spatial.resized("UpSampling", lambda length: length * 2, "size", 2),
        same("Masking", {"mask_value": 0.0}),
        same("SpatialDropout1D", {"rate": 0.0}),
    ),
    3: (
        *_ANY,
        spatial.conv,
        spatial.conv,
        spatial.conv,
        spatial.pooling,
        spatial.pooling,
        spatial.adaptive_pooling,
        spatial.global_pooling,
        permute,
        flatten,
        spatial.resizing,
        time_distributed,
        spatial.conv_recurrent,
        spatial.resized("Cropping", lambda length: length - 2, "cropping", 1),
        spatial.resized("ZeroPadding", lambda length: length + 2, "padding", 1),
        spatial.resized("UpSampling", lambda length: length * 2, "size", 2),
    ),
    4: (
        *_ANY,
        spatial.conv,
        spatial.pooling,
        spatial.adaptive_pooling,
        spatial.global_pooling,
        flatten,
        time_distributed,
        spatial.conv_recurrent,
        spatial.conv_recurrent,
        spatial.resized("ZeroPadding", lambda length: length + 2, "padding", 1),
    ),
}
"""What takes a tensor of a rank and gives one."""

MERGES = ("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Concatenate")
ATTENTION = ("MultiHeadAttention", "GroupQueryAttention", "Attention", "AdditiveAttention")


def draw(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    """Draw a layer for a tensor; None where what was drawn does not suit."""
    if draws.is_drawn(random, 0.12):
        return random.choice(_OWN_LAYERS)(random, shape)
    return random.choice(BY_RANK[len(shape)])(random, shape)


def merge(random: randoms.Random, shape: draws.Shape) -> tuple[spec.Construction, draws.Shape]:
    """Draw a layer that takes two tensors of a shape."""
    kind = random.choice(MERGES)
    width = 2 * shape[-1] if kind == "Concatenate" else shape[-1]
    return draws.layer(kind, {}), (*shape[:-1], width)


def attention(random: randoms.Random, width: int) -> tuple[spec.Construction, str]:
    """Draw a layer that attends from one sequence to another; returns it and its call."""
    kind = random.choice(ATTENTION)
    if kind == "MultiHeadAttention":
        options = draws.weight_options(random, "kernel", "bias", activation=False)
        causal = ", use_causal_mask=True" if draws.is_drawn(random, 0.3) else ""
        construction = draws.layer(kind, options, num_heads=2, key_dim=3)
        return construction, f"{{layer}}({{0}}, {{1}}{causal})"
    if kind == "GroupQueryAttention":
        construction = draws.layer(
            kind, {}, head_dim=2, num_query_heads=4, num_key_value_heads=random.choice((1, 2, 4))
        )
        return construction, "{layer}({0}, {1})"
    options = {"use_scale": "True"} if draws.is_drawn(random, 0.5) else {}
    if kind == "Attention" and draws.is_drawn(random, 0.2):
        options["score_mode"] = "'concat'"
    return draws.layer(kind, options), "{layer}([{0}, {1}])"
