"""The program that runs a function: its source, and a call with arguments."""

import ast
import dataclasses
import inspect
import types
from collections.abc import Callable

from tfparallel.functions import arguments as function_arguments
from tfparallel.functions import outer_names
from tfparallel_operator.api import load

Function = Callable[..., object]

FILE = "tfparallel_function.py"
"""No package has its name, and so the program hides none from the function."""

_TEXT = '''\
"""The function {name}, as tfparallel.TrainerClient.train sends it."""

from __future__ import annotations

import pathlib
import sys

{source}

if __name__ == "__main__":
    {name}({arguments})
'''


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """A file that calls a function with arguments."""

    name: str
    """Of the function."""
    text: str
    takes_results: bool
    """Whether its first word is the path of the folder for results."""


def build(function: object, arguments: object) -> Program:
    """Return the program that calls a function.

    The source of the function travels, and nothing that is around it: so it has to define or import
    whatever it uses.

    Args:
        function: one that is defined with def, in a file or in a cell of a notebook.
        arguments: by the names of its parameters.

    Raises:
        SpecError: it is no such function, uses what it does not define, or an argument is no data.
    """
    checked = _check_kind(function)
    source, node = _read_source(checked)
    if node.decorator_list:
        raise load.SpecError(
            f"func: {checked.__name__} has the decorator"
            f" @{ast.unparse(node.decorator_list[0])}, which does not travel with it. Define the"
            " function without a decorator"
        )
    if names := outer_names.find(node):
        listed = ", ".join(outer_names.describe(name, checked) for name in names)
        raise load.SpecError(
            f"func: {checked.__name__} uses what it does not define: {listed}. A function travels"
            " alone, without the module or the cells around it"
        )
    values = function_arguments.check(checked, arguments)
    takes_results = function_arguments.takes_results(checked, values)
    keywords = [f"{name}={value!r}" for name, value in values.items()]
    if takes_results:
        keywords.append(f"{function_arguments.RESULTS}=pathlib.Path(sys.argv[1])")
    text = _TEXT.format(name=checked.__name__, source=source, arguments=", ".join(keywords))
    return Program(checked.__name__, text, takes_results)


def _check_kind(function: object) -> types.FunctionType:
    """Return a function whose source can travel."""
    if isinstance(function, types.MethodType):
        raise load.SpecError(
            f"func: received the method {function.__qualname__}, whose object does not travel with"
            " it. Write a function, which takes what it needs as arguments"
        )
    if not isinstance(function, types.FunctionType):
        kind = function.__name__ if isinstance(function, type) else type(function).__name__
        raise load.SpecError(
            f"func: received {kind}, which is not a function. Give a function that builds a model"
            " and trains it with tfparallel_trainer.fit"
        )
    if function.__name__ == "<lambda>":
        raise load.SpecError(
            "func: received a lambda. Define a function with def, which has a name"
        )
    is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    if is_generator or inspect.iscoroutinefunction(function):
        kind = "a generator" if is_generator else "a coroutine"
        raise load.SpecError(
            f"func: {function.__name__} is {kind}, which trains nothing when it is called. Give a"
            " function without yield, async and await"
        )
    return function


def _read_source(function: types.FunctionType) -> tuple[str, ast.FunctionDef]:
    """Return the text that defines a function, and its syntax tree."""
    try:
        source = inspect.getsource(function)
        if source[:1].isspace():  # texts of several lines would change if it lost its indentation
            source = f"if True:\n{source}"
        [statement] = ast.parse(source).body
    except (OSError, TypeError, SyntaxError, ValueError) as error:
        raise load.SpecError(
            f"func: the source of {function.__name__} cannot be read. Define the function in a file"
            " or in a cell of a notebook"
        ) from error
    node = statement.body[0] if isinstance(statement, ast.If) else statement
    if not isinstance(node, ast.FunctionDef) or not _is_definition(node, function):
        raise load.SpecError(
            f"func: the source of {function.__name__} has changed since Python read it. Import the"
            " module again, or run the cell again"
        )
    return source.rstrip(), node


def _is_definition(node: ast.FunctionDef, function: types.FunctionType) -> bool:
    code = inspect.unwrap(function).__code__
    count = code.co_argcount + code.co_kwonlyargcount
    parameters = [
        argument.arg
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    ]
    return node.name == code.co_name and parameters == [*code.co_varnames[:count]]
