"""What messages tell people to type exists: verbs and options of the command, fields of a job."""

import ast
import itertools
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import click

from testing import paths
from tfparallel.cli import app
from tfparallel_operator.api import schema

_FOLDERS = ("client/tfparallel", "operator/tfparallel_operator", "trainer/tfparallel_trainer")
_HOLE = "\0"
"""What takes the place of a value in a text."""

_COMMAND = re.compile(r"(?:`|: )tfparallel (?P<words>[a-z][^`.;,()]*)")
_BELOW = "(?:trainer|runPolicy|mesh|scheduling)\\."
_FIELD = re.compile(
    rf"(?<![\w.\0])(?:spec\.|(?={_BELOW}[a-z]))(?P<path>[a-z]\w*(?:\.\w+)*)(?![\w\0-]|\.\w|\[)"
)
_NO_FIELDS = (".io", ".org", ".sh", "json", ".md", "active")
"""Ends of API groups and files, which look like fields, and a field of Kueue's Workload."""


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of a module that are no docstrings, whole where parts have values between."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Expr(value=ast.Constant()):
                continue
            case ast.Constant(value=str(text)):
                yield text
            case ast.JoinedStr(values=values):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else _HOLE for part in values
                )
            case _:
                yield from texts(node)


def product() -> Iterator[str]:
    files = itertools.chain.from_iterable(
        (paths.ROOT / folder).rglob("*.py") for folder in _FOLDERS
    )
    for file in files:
        if file.parent.name == "convert":  # it names fields of other kinds
            continue
        yield from texts(ast.parse(pathlib.Path(file).read_bytes()))


def options_of(command: click.Command) -> set[str]:
    return {
        option
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }


def test_commands_of_messages_exist() -> None:
    context = click.Context(app.tfparallel)
    commands = 0
    for text in product():
        for match in _COMMAND.finditer(text):
            verb, *arguments = match["words"].replace(_HOLE, " X ").split()
            command = app.tfparallel.get_command(context, verb)
            assert command is not None, text
            if isinstance(command, click.Group) and arguments:
                command = command.get_command(context, arguments[0])
                assert command is not None, text
            named = {word.partition("=")[0] for word in arguments if word.startswith("-")}
            assert named <= {*options_of(command), "--help"}, text
            commands += 1
    assert commands > 20


def exists(node: Any, path: list[str]) -> bool:
    if not path:
        return True
    inner = node.get("properties", {}).get(path[0], node.get("additionalProperties"))
    while isinstance(inner, dict) and "items" in inner:
        inner = inner["items"]
    if not isinstance(inner, dict):
        return bool(node.get("x-kubernetes-preserve-unknown-fields"))
    return exists(inner, path[1:])


def test_fields_of_messages_exist() -> None:
    job = schema.job_schema()["properties"]["spec"]
    missing, fields = set(), 0
    for text in product():
        for match in _FIELD.finditer(text):
            if match["path"].endswith(_NO_FIELDS):
                continue
            fields += 1
            if not exists(job, match["path"].split(".")):
                missing.add((match[0], text[:100]))
    assert fields > 150
    assert not missing
