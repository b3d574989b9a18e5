"""What the tables of layers share: options that layers with weights have."""

import random as randoms
from collections.abc import Callable, Mapping

from testing.trainer.random_models import spec

Shape = tuple[int, ...]
"""Without the axis of the batch."""
Drawing = tuple[spec.Construction, Shape] | None
"""A layer and the shape that it gives; None where it does not suit."""
Draw = Callable[[randoms.Random, Shape], Drawing]

KERAS = "keras.layers."
ACTIVATIONS = ("tanh", "relu", "gelu", "sigmoid", "softplus", "elu", "swish", "softsign", "selu")
_INITIALIZERS = (
    "'he_normal'",
    "'lecun_uniform'",
    "keras.initializers.Orthogonal(seed=3)",
    "keras.initializers.RandomNormal(stddev=0.3)",
    "keras.initializers.VarianceScaling(2.0, mode='fan_out')",
    "keras.initializers.TruncatedNormal(stddev=0.2)",
)
REGULARIZERS = (
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
    name = kind if "." in kind or kind in OWN_LAYERS else f"{KERAS}{kind}"
    return spec.Construction(
        name, {key: repr(option) for key, option in required.items()}, dict(options)
    )


OWN_LAYERS = (
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
        options["activation"] = repr(random.choice(ACTIVATIONS))
    for kind in kinds:
        # Orthogonal and others need two axes, so biases keep to simple ones.
        initializers = _INITIALIZERS if kind != "bias" else ("'ones'", "'random_normal'")
        for option, values, probability in (
            ("initializer", initializers, 0.2),
            ("regularizer", REGULARIZERS, 0.15),
            ("constraint", _CONSTRAINTS, 0.1),
        ):
            if is_drawn(random, probability):
                options[f"{kind}_{option}"] = random.choice(values)
    if "bias" in kinds and "bias_initializer" not in options and is_drawn(random, 0.15):
        options = {name: value for name, value in options.items() if not name.startswith("bias_")}
        options["use_bias"] = "False"
    if kinds and is_drawn(random, 0.08):
        options["activity_regularizer"] = random.choice(REGULARIZERS)
    if is_drawn(random, frozen):
        options["trainable"] = "False"
    return options


def units(random: randoms.Random) -> int:
    """Draw a number of features: most divide by two."""
    return random.choice((2, 3, 4, 4, 6, 6, 8))
