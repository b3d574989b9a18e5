"""Names the variables of a model and its optimizer by position.

Paths such as dense_3/kernel renumber and repeat, so they serve as labels only. A key is the
position of a layer among the model's layers, nested ones included, and the position of the variable
in it: model/2.0/1 is the second weight of the first layer of the third layer.
"""

import collections
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tfparallel_trainer import errors

_MODEL = "model"
_SHOWN = 3
_COUNTED = re.compile(r"_\d+(/|$)")

Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of variables by their keys, or by their names in a file."""


def for_training(model: Any, optimizer: Any) -> dict[str, Any]:
    """Map each variable of training, but not random seeds, to its key, as `of_weights` does."""
    weights = of_weights(model)
    weight_ids = {id(variable) for variable in weights.values()}
    slots = of_optimizer(optimizer).items()
    return {**weights, **{key: slot for key, slot in slots if id(slot) not in weight_ids}}


def of_optimizer(optimizer: Any) -> dict[str, Any]:
    """Map each variable of a built optimizer to its key, each variable once."""
    variables: dict[int, tuple[str, Any]] = {}
    for position, variable in enumerate(optimizer.variables):
        variables.setdefault(id(variable), (slot(position), variable))
    return dict(variables.values())


def slot(position: int) -> str:
    """Return the key of the optimizer's variable at a position."""
    return f"optimizer/{position}"


def is_weight(key: str) -> bool:
    """Whether a key is that of a weight, and not of the optimizer's state."""
    return key.startswith(f"{_MODEL}/")


def of_weights(model: Any) -> dict[str, Any]:
    """Map each weight of a model to its key.

    A layer that is used several times counts once. If two weights would have one key, or a weight
    would have none, it is a UserCodeError.
    """
    weights: dict[str, Any] = {}
    visited: set[int] = set()
    for key, variable in _weights(model, ()):
        if id(variable) in visited:
            continue
        visited.add(id(variable))
        if key in weights:
            raise errors.UserCodeError(
                f"Two variables have the checkpoint key {key} ({weights[key].path} and "
                f"{variable.path}): give each its own place in the model.",
                function="build_model",
            )
        weights[key] = variable
    lost = [variable.path for variable in model.weights if id(variable) not in visited]
    if lost:
        raise errors.UserCodeError(
            f"The weight {lost[0]} belongs to no layer of the model, so it cannot be saved: assign "
            "its layer to an attribute of the model.",
            function="build_model",
        )
    return weights


def differences(there: Shapes, here: Shapes, shown: Callable[[str], str]) -> str:
    """Describe the variables in which a file and a model differ; empty if there are none."""
    differing = [
        f"{shown(name)} has the shape {there.get(name, 'of nothing')} there and "
        f"{here.get(name, 'of nothing')} here"
        for name in sorted({*there, *here})
        if there.get(name) != here.get(name)
    ]
    more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
    return "; ".join(differing[:_SHOWN]) + more


def exchanged(there: Mapping[str, str], here: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Find a weight that has another key in a file: its label, its key there and here; or None.

    Keras' numbered names differ between two models of one process, so numbered labels count only if
    both sides have the same ones.
    """
    places, others = _places(there), _places(here)
    all_alike = places.keys() == others.keys()
    for label in sorted(places.keys() & others.keys()):
        if places[label] != others[label] and (all_alike or not _COUNTED.search(label)):
            return label, places[label], others[label]
    return None


def _places(labels: Mapping[str, str]) -> dict[str, str]:
    """The keys of weights by their labels, without labels that several weights have."""
    counts = collections.Counter(labels.values())
    return {label: key for key, label in labels.items() if counts[label] == 1}


def _weights(layer: Any, path: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    """The weights of a container's layers first, by position, then its own."""
    inner: set[int] = set()
    for position, child in enumerate(getattr(layer, "layers", ())):
        for key, variable in _weights(child, (*path, position)):
            inner.add(id(variable))
            yield key, variable
    name = ".".join(map(str, path)) or "self"
    direct_weights = [variable for variable in layer.weights if id(variable) not in inner]
    for position, variable in enumerate(direct_weights):
        yield f"{_MODEL}/{name}/{position}", variable
