"""Tables of losses with targets that suit them, of optimizers and of callbacks."""

import random as randoms

from testing.trainer.random_models import draws, spec

_LOSSES = "keras.losses."


def keras_loss(kind: str, **options: object) -> spec.Construction:
    """Return a loss of Keras."""
    return spec.Construction(
        f"{_LOSSES}{kind}", {}, {key: repr(value) for key, value in options.items()}
    )


def _function(name: str) -> spec.Construction:
    return spec.Construction(name, is_call=False)


Head = tuple[str, str | None, tuple[spec.Construction, ...]]
"""Targets of a shape, the activation of the output, and losses."""

_NORMAL = "random.normal(size=(EXAMPLES, {shape}))"
_POSITIVE = "random.uniform(0.5, 2.0, size=(EXAMPLES, {shape}))"
_BINARY = "(random.uniform(size=(EXAMPLES, {shape})) < {share}).astype('float64')"
_SIGNS = "numpy.sign(random.normal(size=(EXAMPLES, {shape})))"
_CLASSES = "random.choice({classes}, size=(EXAMPLES, {front}))"
_ONE_HOT = f"numpy.eye({{last}})[{_CLASSES}]"

HEADS: tuple[Head, ...] = (
    (
        _NORMAL,
        None,
        (
            keras_loss("MeanSquaredError"),
            keras_loss("MeanSquaredError"),
            keras_loss("MeanAbsoluteError"),
            keras_loss("Huber", delta=0.5),
            keras_loss("LogCosh"),
            keras_loss("CosineSimilarity"),
            spec.Construction("Quantile", {}, {"quantile": "0.3"}),
            spec.Construction("Positive"),
            _function("absolute"),
            _function("elementwise"),
            _function("per_positive"),
        ),
    ),
    (
        _POSITIVE,
        "softplus",
        (
            keras_loss("MeanSquaredLogarithmicError"),
            keras_loss("Poisson"),
            keras_loss("MeanAbsolutePercentageError"),
        ),
    ),
    (
        _BINARY,
        "sigmoid",
        (
            keras_loss("BinaryCrossentropy", label_smoothing=0.1),
            keras_loss("BinaryFocalCrossentropy", gamma=1.5),
            keras_loss("BinaryFocalCrossentropy", apply_class_balancing=True),
            keras_loss("Dice"),
            keras_loss("Tversky", alpha=0.3),
        ),
    ),
    (
        _BINARY,
        None,
        (keras_loss("BinaryCrossentropy", from_logits=True),),
    ),
    (_SIGNS, "tanh", (keras_loss("Hinge"), keras_loss("SquaredHinge"))),
    (
        _ONE_HOT,
        "softmax",
        (
            keras_loss("CategoricalCrossentropy"),
            keras_loss("CategoricalCrossentropy", label_smoothing=0.1),
            keras_loss("CategoricalFocalCrossentropy"),
            keras_loss("CategoricalHinge"),
            keras_loss("KLDivergence"),
            keras_loss("Dice", axis=(-1,)),
        ),
    ),
    (_ONE_HOT, None, (keras_loss("CategoricalCrossentropy", from_logits=True),)),
    (
        _CLASSES,
        None,
        (
            keras_loss("SparseCategoricalCrossentropy", from_logits=True),
            keras_loss("SparseCategoricalCrossentropy", from_logits=True, ignore_class=0),
        ),
    ),
    (
        _CLASSES,
        "softmax",
        (
            keras_loss("SparseCategoricalCrossentropy"),
            keras_loss("CategoricalGeneralizedCrossEntropy", q=0.6),
        ),
    ),
)
_REDUCTIONS = ("sum", "mean", "mean_with_sample_weight")


def draw_head(
    random: randoms.Random, shape: tuple[int, ...]
) -> tuple[str, str | None, spec.Construction | None]:
    """Draw targets, the activation of the output and the loss for an output of a shape."""
    targets, activation, losses = random.choice(HEADS)
    classes = range(shape[-1])
    if draws.is_drawn(random, 0.3):
        classes = range(max(1, shape[-1] - 1))
    text = targets.format(
        shape=", ".join(map(str, shape)),
        front="".join(f"{length}, " for length in shape[:-1]),
        last=shape[-1],
        classes=list(classes),
        share=random.choice((0.05, 0.3, 0.5)),
    )
    loss: spec.Construction | None = random.choice(losses)
    if draws.is_drawn(random, 0.04):
        loss = None
    elif loss is not None and loss.is_call and draws.is_drawn(random, 0.25):
        reduction = repr(random.choice(_REDUCTIONS))
        loss = spec.Construction(loss.kind, loss.required, {**loss.options, "reduction": reduction})
    return text, activation, loss


_WEIGHTS = (
    "random.uniform(0.2, 2.0, size={size})",
    "random.uniform(0.2, 2.0, size={size}) * (random.uniform(size={size}) < 0.6)",
    "numpy.where(random.uniform(size={size}) < 0.5, 0.5, 3.0)",
    "(random.uniform(size={size}) < 0.2).astype('float64')",
)


def draw_weights(random: randoms.Random, shape: str) -> str:
    """Draw the weights of an output's examples; empty for none."""
    if not draws.is_drawn(random, 0.3):
        return ""
    return random.choice(_WEIGHTS).format(size=shape)


_SCHEDULES = (
    "keras.optimizers.schedules.ExponentialDecay({rate}, 3, 0.7)",
    "keras.optimizers.schedules.ExponentialDecay({rate}, 2, 0.5, staircase=True)",
    "keras.optimizers.schedules.PiecewiseConstantDecay([2, 4], [{rate}, 0.01, 0.02])",
    "keras.optimizers.schedules.CosineDecay({rate}, 6)",
    "keras.optimizers.schedules.CosineDecay(0.0, 6, warmup_target={rate}, warmup_steps=2)",
    "keras.optimizers.schedules.PolynomialDecay({rate}, 5, 0.001)",
    "keras.optimizers.schedules.InverseTimeDecay({rate}, 2, 0.5)",
    "keras.optimizers.schedules.CosineDecayRestarts({rate}, 3)",
)
_OPTIMIZERS: tuple[tuple[str, float, tuple[dict[str, str], ...]], ...] = (
    ("SGD", 0.05, ({}, {"momentum": "0.9"}, {"momentum": "0.8", "nesterov": "True"})),
    ("Adam", 0.01, ({}, {"amsgrad": "True"}, {"beta_1": "0.8"})),
    ("AdamW", 0.01, ({}, {"amsgrad": "True"})),
    ("Adamax", 0.01, ({},)),
    ("Nadam", 0.01, ({},)),
    ("RMSprop", 0.01, ({}, {"momentum": "0.5"}, {"centered": "True"})),
    ("Adagrad", 0.05, ({}, {"initial_accumulator_value": "0.2"})),
    ("Adadelta", 0.5, ({},)),
    ("Ftrl", 0.05, ({}, {"l2_regularization_strength": "0.01"})),
    ("Lamb", 0.01, ({},)),
    ("Adafactor", 0.05, ({}, {"relative_step": "False"})),
    ("Muon", 0.01, ({},)),
    ("Lion", 0.003, ({},)),
    ("ScheduleFreeAdamW", 0.01, ({}, {"warmup_steps": "3"})),
)
_CLIPS = (("clipnorm", "0.5"), ("clipvalue", "0.05"), ("global_clipnorm", "0.7"))
_EXCLUSIONS = (
    "exclude_from_weight_decay(var_names=['bias'])",
    "exclude_from_weight_decay(var_list=[model.trainable_variables[0]])",
)


def draw_optimizer(random: randoms.Random) -> tuple[spec.Construction, tuple[str, ...]]:
    """Draw an optimizer, and what is called of it before the model is compiled."""
    kind, rate, choices = random.choice((*_OPTIMIZERS[:3], *_OPTIMIZERS))
    options = dict(random.choice(choices))
    text = repr(rate)
    if kind not in ("ScheduleFreeAdamW",) and draws.is_drawn(random, 0.2):
        text = random.choice(_SCHEDULES).format(rate=rate)
    if draws.is_drawn(random, 0.25):
        options.update([random.choice(_CLIPS)])
    calls: tuple[str, ...] = ()
    if draws.is_drawn(random, 0.2):
        options["weight_decay"] = "0.02"
        if draws.is_drawn(random, 0.4):
            calls = (random.choice(_EXCLUSIONS),)
    if draws.is_drawn(random, 0.12):
        options |= {"use_ema": "True", "ema_momentum": "0.7"}
        if draws.is_drawn(random, 0.5):
            options["ema_overwrite_frequency"] = "2"
    elif draws.is_drawn(random, 0.12):
        options["gradient_accumulation_steps"] = "2"
    optimizer = spec.Construction(f"keras.optimizers.{kind}", {"learning_rate": text}, options)
    if draws.is_drawn(random, 0.04):
        inner = optimizer.text()
        optimizer = spec.Construction(
            "keras.optimizers.LossScaleOptimizer", {"inner_optimizer": inner}
        )
    return optimizer, calls


_CALLBACKS = (
    spec.Construction(
        "keras.callbacks.LearningRateScheduler", {"schedule": "lambda epoch, rate: rate * 0.6"}
    ),
    spec.Construction(
        "keras.callbacks.ReduceLROnPlateau",
        {"monitor": "'loss'", "factor": "0.5", "patience": "0", "min_delta": "10.0"},
    ),
    spec.Construction("keras.callbacks.EarlyStopping", {"monitor": "'loss'", "min_delta": "10.0"}),
    spec.Construction("keras.callbacks.TerminateOnNaN"),
    spec.Construction("SetRate"),
    spec.Construction("ScaleWeights"),
    spec.Construction("Freeze"),
    spec.Construction("Prune"),
    spec.Construction("Stop"),
)
_SETS_RATE = ("LearningRateScheduler", "ReduceLROnPlateau", "SetRate")


def draw_callbacks(
    random: randoms.Random, optimizer: spec.Construction
) -> tuple[spec.Construction, ...]:
    """Draw callbacks that suit the optimizer, none in most jobs."""
    if not draws.is_drawn(random, 0.3):
        return ()
    # Keras refuses to set the rate of an optimizer that has a schedule.
    has_schedule = "schedules." in optimizer.text()
    suitable = [
        callback
        for callback in _CALLBACKS
        if not (has_schedule and callback.kind.endswith(_SETS_RATE))
    ]
    return tuple(random.sample(suitable, random.choice((1, 1, 2))))
