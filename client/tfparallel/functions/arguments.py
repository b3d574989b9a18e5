"""Arguments of a function, which travel in the text of a program. Pure."""

import inspect
import math
import types
from collections.abc import Iterator, Mapping
from typing import Any

from tfparallel_operator.api import load

RESULTS = "results"
"""The parameter that gets the path of the folder for results."""

_SCALARS = (bool, int, str, bytes, types.NoneType)
_CONTAINERS = (list, tuple, set, dict)
_KINDS = "numbers that are finite, text, bytes, None, and lists, tuples, sets and dictionaries"


def check(function: types.FunctionType, arguments: object) -> Mapping[str, Any]:
    """Return the arguments of a function if a program can have them.

    Raises:
        SpecError: one is missing, not a parameter of the function, or not data.
    """
    if not isinstance(arguments, Mapping):
        raise load.SpecError(
            f"func_args: received {type(arguments).__name__}: give a dictionary with the arguments"
            " by their names"
        )
    bound = {**({RESULTS: None} if takes_results(function, arguments) else {}), **arguments}
    signature = inspect.signature(function)
    try:
        signature.bind(**bound)
    except TypeError as error:
        raise load.SpecError(
            f"func_args: {function.__name__}{signature}: {error}. Give each argument that has no"
            " default by its name"
        ) from error
    for name, value in arguments.items():
        for path, kind in _find_others(f"func_args[{name!r}]", value, ()):
            raise load.SpecError(
                f"{path}: received {kind}, and arguments are data: {_KINDS}. Pass what it is made"
                " from, and make it in the function"
            )
    return arguments


def takes_results(function: types.FunctionType, arguments: Mapping[str, Any]) -> bool:
    """Whether the function asks for the folder of the results."""
    return RESULTS in inspect.signature(function).parameters and RESULTS not in arguments


def _find_others(path: str, value: object, around: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    """Yield what is no data: where it is, and what it is."""
    kind = type(value)
    if id(value) in around:
        yield path, "what holds itself"
    elif kind in _SCALARS or (isinstance(value, float) and kind is float and math.isfinite(value)):
        return
    elif isinstance(value, float) and kind is float:
        yield path, repr(value)
    elif isinstance(value, dict) and kind is dict:
        for key, inner in value.items():
            yield from _find_others(f"a key of {path}", key, (*around, id(value)))
            yield from _find_others(f"{path}[{key!r}]", inner, (*around, id(value)))
    elif isinstance(value, list | tuple | set) and kind in _CONTAINERS:
        for number, inner in enumerate(value):
            yield from _find_others(f"{path}[{number}]", inner, (*around, id(value)))
    else:
        yield path, f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
