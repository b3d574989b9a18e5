"""Digests of everything in a model but its variables, by which processes compare models.

Variables are shared from the first replica. But each process computes vocabularies, constants and
configurations of layers itself, and they have to be the same.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer.comms import agreement
from tfparallel_trainer.objective import checks, tracing

_NOWHERE = "the loss, the metrics or the operations of a step"
_FREE = frozenset({"name", "seed"})
"""Fields that may differ: Keras numbers names, and random layers draw different numbers anyway."""
_OF_ALL = frozenset({"dtype", "trainable"})
"""Fields of any layer's configuration that Keras itself reads."""

Digests = dict[str, int]
"""Digests of 60 bits, by the names of a model's parts."""


def describe(model: Any) -> Digests:
    """Digests of the configurations and vocabularies of a model's layers."""
    return {part: agreement.digest(_configuration(layer)) for part, layer in _parts(model).items()}


def describe_trace(model: Any, trace: tracing.Trace) -> Digests:
    """Digests of a model's trace, and of the layers that have constants in it."""
    parts = _parts(model)
    by_name = {
        tracing.uncounted(part_name.name): part for part, part_name in reversed(parts.items())
    }
    kinds = [closure.kind for closure in trace.closures]
    contents = {_NOWHERE: [trace.operations, str(kinds)]}
    for name, constant in trace.constants:
        contents.setdefault(_place(name, by_name), []).append(constant)
    for part in contents.keys() & parts.keys():
        contents[part].append(_configuration(parts[part]))
    return {part: agreement.digest("\n".join(texts)) for part, texts in contents.items()}


def describe_values(closures: Sequence[tracing.Closure]) -> Digests:
    """Digests of the values of variables outside a model."""
    return {
        f"the variable {closure.path}" + (f", number {index}" if index else ""): agreement.digest(
            tracing.describe_array(tf.convert_to_tensor(closure))
        )
        for index, closure in enumerate(closures)
    }


def _parts(model: Any) -> dict[str, Any]:
    """The layers of a model by names for people."""
    layers: dict[str, Any] = {}
    for index, layer in enumerate(checks.layers(model)):
        shown = f"the layer {layer.name} ({type(layer).__name__})"
        layers[shown if shown not in layers else f"{shown}, number {index}"] = layer
    return layers


def _place(name: str, parts: Mapping[str, str]) -> str:
    """The part whose name the innermost scope of an operation's uncounted name has."""
    for scope in reversed(name.split("/")[:-1]):
        part = parts.get(scope)
        if part is not None:
            return part
    return _NOWHERE


def _configuration(layer: Any) -> str:
    """The configuration of a layer without its sublayers, and its vocabulary."""
    facts: list[Any] = [type(layer).__name__]
    if not any(True for _ in checks.children(layer)):
        # A user's class without a configuration is not saved, or refused elsewhere.
        with contextlib.suppress(NotImplementedError, TypeError, ValueError, AttributeError):
            facts.append(_settings(layer))
    if hasattr(layer, "get_vocabulary"):
        facts.append(layer.get_vocabulary())
    return json.dumps(_plain(facts), sort_keys=True)


def _settings(layer: Any) -> dict[str, Any]:
    """The fields of a layer's configuration that have an effect which its operations do not show.

    A user's class may also record there when and where it was made, or its files.
    """
    config: dict[str, Any] = layer.get_config()
    if hasattr(layer, "get_vocabulary"):  # which may come from a file, in any folder
        config.pop("vocabulary", None)
    if type(layer).__module__.startswith("keras."):
        return config
    return {key: value for key, value in config.items() if key in _OF_ALL or _is_object(value)}


def _is_object(value: Any) -> bool:
    """Whether a configuration has a part of Keras here, such as a constraint."""
    return isinstance(value, Mapping) and "class_name" in value


def _plain(value: Any) -> Any:
    """A value as JSON. An object with an address in memory becomes its type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        if value.get("class_name") == "__lambda__":  # code, which is of one module anyhow
            return "lambda"
        return {str(key): _plain(item) for key, item in value.items() if key not in _FREE}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(item) for item in value), key=repr)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return type(value).__name__
