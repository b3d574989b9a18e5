"""Layers that slide windows over tensors or go along sequences."""

import random as randoms
from collections.abc import Callable

from testing.trainer.random_models import draws, spec


def window(random: randoms.Random, shape: draws.Shape) -> tuple[int, int, str]:
    """Draw size, stride and padding of a window that fits all spatial axes."""
    size = random.choice([length for length in (1, 2, 3) if length <= min(shape[:-1])])
    stride = random.choice((1, 1, 2))
    return size, stride, random.choice(("valid", "same"))


def slide(length: int, size: int, stride: int, padding: str) -> int:
    """Return the length that a window gives."""
    return -(-length // stride) if padding == "same" else (length - size) // stride + 1


def conv(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    axes = len(shape) - 1
    if min(shape[:-1]) < 2:
        return None
    size, stride, padding = window(random, shape)
    kind = random.choice(
        ("", "", "", "Transpose", "Separable", "Depthwise") if axes < 3 else ("", "", "Transpose")
    )
    count = draws.units(random)
    options = draws.weight_options(random, "bias")
    spatial = tuple(slide(length, size, stride, padding) for length in shape[:-1])
    if kind == "Depthwise":
        multiplier = random.choice((1, 2))
        options["depth_multiplier"] = repr(multiplier)
        construction = draws.layer(
            f"DepthwiseConv{axes}D", options, kernel_size=size, strides=stride, padding=padding
        )
        return construction, (*spatial, shape[-1] * multiplier)
    if kind == "Transpose":
        spatial = tuple(
            length * stride if padding == "same" else length * stride + max(size - stride, 0)
            for length in shape[:-1]
        )
    elif stride == 1 and kind == "" and draws.is_drawn(random, 0.2) and min(shape[:-1]) > 2 * size:
        options["dilation_rate"] = "2"
        size_dilated = 2 * (size - 1) + 1
        spatial = tuple(slide(length, size_dilated, 1, padding) for length in shape[:-1])
    if kind == "":
        options |= draws.weight_options(random, "kernel", activation=False, frozen=0)
        if axes == 1 and draws.is_drawn(random, 0.2) and padding == "valid":
            padding = "causal"
            spatial = (-(-shape[0] // stride),)
        if shape[-1] % 2 == 0 and count % 2 == 0 and draws.is_drawn(random, 0.15):
            options["groups"] = "2"
    name = {"": f"Conv{axes}D", "Transpose": f"Conv{axes}DTranspose"}.get(
        kind, f"SeparableConv{axes}D"
    )
    construction = draws.layer(
        name, options, filters=count, kernel_size=size, strides=stride, padding=padding
    )
    return construction, (*spatial, count)


def pooling(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    axes = len(shape) - 1
    if min(shape[:-1]) < 2:
        return None
    size, stride, padding = window(random, shape)
    kind = random.choice(("Max", "Average"))
    construction = draws.layer(
        f"{kind}Pooling{axes}D", {}, pool_size=size, strides=stride, padding=padding
    )
    return construction, (
        *(slide(length, size, stride, padding) for length in shape[:-1]),
        shape[-1],
    )


def adaptive_pooling(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    axes = len(shape) - 1
    size = random.randint(1, min(shape[:-1]))
    kind = random.choice(("Max", "Average"))
    construction = draws.layer(f"Adaptive{kind}Pooling{axes}D", {}, output_size=size)
    return construction, (*(size for _ in shape[:-1]), shape[-1])


def global_pooling(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    kind = random.choice(("Max", "Average"))
    return draws.layer(f"Global{kind}Pooling{len(shape) - 1}D", {}), shape[-1:]


def resized(kind: str, change: Callable[[int], int], argument: str, value: object) -> draws.Draw:
    """Draw a layer that pads, crops or repeats all spatial axes."""

    def draw(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
        spatial = tuple(change(length) for length in shape[:-1])
        if min(spatial) < 1:
            return None
        construction = draws.layer(f"{kind}{len(shape) - 1}D", {}, **{argument: value})
        return construction, (*spatial, shape[-1])

    return draw


def resizing(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    height, width = random.choice((4, 5, 6)), random.choice((4, 6))
    kind = random.choice(("Resizing", "CenterCrop"))
    if kind == "CenterCrop" and (height > shape[0] or width > shape[1]):
        return None
    return draws.layer(kind, {}, height=height, width=width), (height, width, shape[-1])


def recurrent(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    kind = random.choice(("SimpleRNN", "GRU", "LSTM", "LSTM", "GRU"))
    count = random.choice((2, 3, 4, 4))
    options = draws.weight_options(random, "kernel", "recurrent", "bias", activation=False)
    if draws.is_drawn(random, 0.2):
        options["go_backwards"] = "True"
    if draws.is_drawn(random, 0.15):
        options["unroll"] = "True"
    if kind == "GRU" and draws.is_drawn(random, 0.3):
        options["reset_after"] = "False"
    if kind == "LSTM" and draws.is_drawn(random, 0.3):
        options["unit_forget_bias"] = "False"
    sequences = draws.is_drawn(random, 0.5)
    construction = draws.layer(kind, options, units=count, return_sequences=sequences)
    if "go_backwards" not in options and draws.is_drawn(random, 0.25):
        merge = random.choice(("concat", "sum", "mul", "ave"))
        width = 2 * count if merge == "concat" else count
        inner = construction.without("activity_regularizer").without("trainable").text()
        construction = spec.Construction(
            f"{draws.KERAS}Bidirectional", {"layer": inner, "merge_mode": repr(merge)}
        )
        count = width
    return construction, (shape[0], count) if sequences else (count,)


def cells(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    counts = [random.choice((2, 3, 4)) for _ in range(random.choice((1, 2)))]
    kinds = [random.choice(("SimpleRNNCell", "GRUCell", "LSTMCell")) for _ in counts]
    texts = [f"{draws.KERAS}{kind}({count})" for kind, count in zip(kinds, counts, strict=True)]
    cell = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    sequences = draws.is_drawn(random, 0.5)
    construction = spec.Construction(
        f"{draws.KERAS}RNN", {"cell": cell, "return_sequences": repr(sequences)}
    )
    return construction, (shape[0], counts[-1]) if sequences else (counts[-1],)


def conv_recurrent(random: randoms.Random, shape: draws.Shape) -> draws.Drawing:
    axes = len(shape) - 2
    count = random.choice((2, 4))
    sequences = draws.is_drawn(random, 0.5)
    construction = draws.layer(
        f"ConvLSTM{axes}D",
        draws.weight_options(random, "kernel", "bias", activation=False),
        filters=count,
        kernel_size=2,
        padding="same",
        return_sequences=sequences,
    )
    output = (*shape[1:-1], count)
    return construction, (shape[0], *output) if sequences else output
