"""The functions of the user's module, which docs/how-to/model-interface.md describes."""

import ast
import difflib
from collections.abc import Iterable, Iterator, Sequence

BUILD_STRATEGY = "build_strategy"
"""Required with strategy `Custom`."""

REQUIRED = ("build_model", "training_data")
OPTIONAL = ("compile_model", "evaluation_data", BUILD_STRATEGY, "callbacks", "layer_shardings")

RENAMED = {"layer_ways": "layer_shardings"}
"""Functions of an earlier interface, with the names that they have now."""

RESULTS = {
    "build_model": "the keras.Model",
    "training_data": "the examples to train on",
    BUILD_STRATEGY: "the tf.distribute.Strategy",
}
"""What each function that may be required returns."""

_OTHER_NAMES = {
    "build_model": ("create_model", "make_model", "get_model", "model_fn", "model"),
    "training_data": (
        "train_data",
        "train_dataset",
        "train_ds",
        "dataset",
        "get_data",
        "load_data",
    ),
    "compile_model": ("compile",),
    "evaluation_data": (
        *("validation_data", "validation_dataset", "val_data", "val_dataset", "val_ds"),
        *("eval_data", "eval_dataset", "test_data", "test_dataset", "test_ds"),
    ),
    BUILD_STRATEGY: ("create_strategy", "make_strategy", "get_strategy", "strategy"),
    "callbacks": ("get_callbacks", "make_callbacks", "build_callbacks", "callback"),
}
"""How functions of the interface are called elsewhere: in tutorials, and in other frameworks."""

_LIKENESS = 0.7
"""How alike two names are, from 0 to 1, of which one may be the other with a typing error."""


def find_misnamed(module: ast.Module, missing: Iterable[str]) -> dict[str, str]:
    """Return the functions of a module that seem to be meant as others, by these others' names.

    Args:
        module: the text of the module.
        missing: functions of the interface that it lacks. One that the module itself uses is not
            meant as an optional one.
    """
    defined = list(_functions(module))
    used = {node.id for node in ast.walk(module) if isinstance(node, ast.Name)}
    idle = [name for name in defined if name not in used]
    similar = {
        function: _find_similar(function, defined if function in REQUIRED else idle)
        for function in missing
    }
    return {function: name for function, name in similar.items() if name}


def describe_renamed(function: str) -> str:
    """Say how a function of an earlier interface is called now."""
    return f"the function {function} is now called {RENAMED[function]}; rename it"


def _functions(module: ast.Module) -> Iterator[str]:
    """Yield the names of functions that a module defines, and of what it imports from others."""
    for statement in module.body:
        match statement:
            case ast.FunctionDef(name=name, decorator_list=[]):
                yield name
            case ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name for alias in aliases)


def _find_similar(function: str, names: Sequence[str]) -> str:
    others = _OTHER_NAMES.get(function, ())
    if synonyms := [name for name in others if name in names]:
        return synonyms[0]
    of_others = {*REQUIRED, *OPTIONAL}.union(*_OTHER_NAMES.values())
    unknown = [name for name in names if name not in of_others]
    return "".join(difflib.get_close_matches(function, unknown, 1, _LIKENESS))
