"""Translates optimizers that distinguish single variables from the skeleton to a rank.

`compile_model` runs on the skeleton, and a rank trains variables of its own. Each of a rank's
variables has the path and the attributes of the skeleton's. The arguments of
`exclude_from_weight_decay` are translated. An optimizer that refers to variables in any other way
is refused.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras.src.backend.tensorflow import optimizer as tensorflow_optimizer  # not in the public API

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import slots

_EXCLUDED = "_exclude_from_weight_decay"
"""Keras' attribute of an optimizer: the keys of variables that it does not decay."""
_VARIABLES = "_variables"
"""Keras' list of an optimizer's variables, including those in its attributes."""
_OF_VALUE = frozenset({"_value", "_initializer", "_shape", "_ndim"})
"""Attributes of a variable that Keras derives from its value."""
_TRACKING = "_self_"
"""Prefix of the attributes in which TensorFlow keeps an object's dependencies."""
_WITHIN_APPLY = ("clipnorm", "clipvalue", "global_clipnorm", "gradient_accumulation_steps")
_TRIAL_STEPS = 3
_LIBRARIES = frozenset({"builtins", "keras", "numpy", "tensorflow"})
_CONTAINERS = (list, tuple, set, frozenset)


def variable_like(skeleton: Any, value: Any) -> Any:
    """A variable that an optimizer treats as the skeleton's, by path and attributes."""
    variable = keras.Variable(
        value, dtype=skeleton.dtype, trainable=skeleton.trainable, name=skeleton.name
    )
    for name, one in vars(skeleton).items():
        if name not in _OF_VALUE and not name.startswith(_TRACKING):
            vars(variable)[name] = one
    return variable


@contextlib.contextmanager
def keys_of_skeletons() -> Iterator[None]:
    """Let optimizers use variables without values as keys, as `exclude_from_weight_decay` does.

    Otherwise, the key of a variable would be that of its value.
    """
    kind = tensorflow_optimizer.TFOptimizer
    original = kind._var_key

    def key_of(optimizer: Any, variable: Any) -> Any:
        if isinstance(variable, keras.Variable) and variable._value is None:
            return _key(variable)
        return original(optimizer, variable)

    kind._var_key = key_of
    try:
        yield
    finally:
        kind._var_key = original


def translate(optimizer: Any, variables: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
    """Let an optimizer, not yet built, exclude a rank's weights where it excludes the skeleton's.

    Both arguments map keys to variables. An optimizer that refers to the model in another way is a
    UserCodeError.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    _check(inner, variables)
    _check_apply(inner)
    excluded = getattr(inner, _EXCLUDED, ())
    kept = {
        inner._var_key(weight)
        for key, weight in weights.items()
        if _key(variables[key]) in excluded
    }
    if excluded:
        setattr(inner, _EXCLUDED, kept)


def check_separable(optimizer: Any, variables: Sequence[Any]) -> None:
    """Refuse (UserCodeError) an optimizer whose update of a variable depends on the others.

    A stage has only some of the variables. Keras' optimizers update each by itself, except for
    norms, which the engine computes. Any other optimizer is tried on small variables of the same
    names.
    """
    kind = type(getattr(optimizer, "inner_optimizer", optimizer))
    if kind.__module__.startswith("keras.") or len(variables) < 2:
        return
    every = _trial(optimizer, variables, range(len(variables)))
    for index, variable in enumerate(variables):
        alone = _trial(optimizer, variables, [index])
        if not np.array_equal(every[index], alone[index]):
            raise errors.UserCodeError(
                f"The optimizer {kind.__name__} changes {variable.path} in another way where it "
                "is not given all variables, and with mesh.stage a rank has some of them only. "
                "Let it change each variable by its own gradient, or let mesh.stage be 1.",
                function="compile_model",
            )


def _trial(optimizer: Any, variables: Sequence[Any], places: Sequence[int]) -> dict[int, Any]:
    """The values of some variables after a few steps, by their positions among all."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    probe = slots.rebuilt(inner)
    probe.clipnorm = probe.global_clipnorm = None
    chosen = {}
    for index in places:
        numbers = np.random.default_rng(index).normal(size=[2] * len(variables[index].shape))
        chosen[index] = variable_like(variables[index], numbers)
    for step in range(_TRIAL_STEPS):
        factor = (step + 1) * 0.5
        probe.apply([value.value * factor for value in chosen.values()], list(chosen.values()))
    return {index: np.array(variable) for index, variable in chosen.items()}


def _key(variable: Any) -> str:
    return f"skeleton {id(variable)}"


def _check(optimizer: Any, variables: Mapping[str, Any]) -> None:
    """Refuse (UserCodeError) an optimizer that contains optimizers or parts of the model."""
    paths = {id(variable): variable.path for variable in variables.values()}
    kind = type(optimizer).__name__
    for name, value in vars(optimizer).items():
        if name == _VARIABLES or name.startswith(_TRACKING):
            continue
        for reached in _reachable(value, set()):
            if isinstance(reached, keras.optimizers.Optimizer) and reached is not optimizer:
                raise errors.UserCodeError(
                    f"The optimizer {kind} has other optimizers in it ({name}), and with "
                    "ModelSplit each rank has but a part of what they train. Compile the model "
                    "with one of Keras' optimizers, or use the strategy MultiWorkerMirrored.",
                    function="compile_model",
                )
            if (part := _part(reached, paths)) is not None:
                raise _refusal(kind, name, part)
    for base in type(optimizer).__mro__:
        if base.__module__.startswith("keras."):
            break
        for name, method in vars(base).items():
            if not inspect.isfunction(method):
                continue
            for reached in _reachable(method, set()):
                if (part := _part(reached, paths)) is not None:
                    raise _refusal(kind, name, part)


def _check_apply(optimizer: Any) -> None:
    """Refuse (UserCodeError) a user's `apply` with settings that Keras handles within `apply`.

    The engine clips and adds up gradients before `apply`.
    """
    kind = type(optimizer)
    base = next(base for base in kind.__mro__ if "apply" in vars(base))
    settings = [name for name in _WITHIN_APPLY if getattr(optimizer, name) is not None]
    if settings and not base.__module__.startswith("keras."):
        raise errors.UserCodeError(
            f"The optimizer {kind.__name__} has an apply of its own and {settings[0]}, which "
            f"ModelSplit heeds before apply, and Keras within it. Leave {settings[0]} out, or use "
            "the strategy MultiWorkerMirrored.",
            function="compile_model",
        )


def _refusal(kind: str, name: str, part: str) -> errors.UserCodeError:
    return errors.UserCodeError(
        f"The optimizer {kind} refers to {part} of the model ({name}), but with ModelSplit each "
        "rank trains variables of its own. Let the optimizer distinguish variables by their path "
        "or name, or use the strategy MultiWorkerMirrored.",
        function="compile_model",
    )


def _part(value: Any, paths: Mapping[int, str]) -> str | None:
    """The part of the model that a value, or an id, refers to; None for others."""
    if isinstance(value, int) and not isinstance(value, bool) and value in paths:
        return paths[value]
    if isinstance(value, keras.Variable):
        return paths.get(id(value))
    if isinstance(value, keras.layers.Layer) and any(
        id(variable) in paths for variable in value.variables
    ):
        return f"the layer {value.name}"
    return None


def _reachable(value: Any, seen_ids: set[int]) -> Iterator[Any]:
    """A value, the contents of a container, and the values that a function reads."""
    if id(value) in seen_ids:
        return
    seen_ids.add(id(value))
    yield value
    if isinstance(value, dict):
        inside: tuple[Any, ...] = (*value.keys(), *value.values())
    elif isinstance(value, _CONTAINERS):
        inside = tuple(value)
    elif inspect.ismethod(value):
        inside = (value.__func__,)
    elif inspect.isfunction(value):
        inside = _read_by(value)
    elif _is_of_user(value):
        inside = tuple(vars(value).values())
    else:
        return
    for reached in inside:
        yield from _reachable(reached, seen_ids)


def _is_of_user(value: Any) -> bool:
    """Whether a value is an object of a user's class."""
    library = type(value).__module__.partition(".")[0]
    return hasattr(value, "__dict__") and library not in _LIBRARIES and not inspect.isclass(value)


def _read_by(function: Callable[..., Any]) -> tuple[Any, ...]:
    """The values that a function reads from outside, except functions and modules."""
    try:
        read = inspect.getclosurevars(function)
    except ValueError:  # an outer variable without a value yet
        return ()
    values = (*read.nonlocals.values(), *read.globals.values())
    return tuple(
        value for value in values if not (inspect.isfunction(value) or inspect.ismodule(value))
    )
