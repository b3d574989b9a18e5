"""The command `tfparallel` in tests: called in their process, which is quicker, or as a program."""

import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from click import testing

from tfparallel.cli import app

PROGRAM = (sys.executable, "-m", "tfparallel")
Result = testing.Result
Ended = subprocess.CompletedProcess[str]


def invoke(
    arguments: Sequence[str] = (), text: str | bytes | None = None, **options: Any
) -> Result:
    """Call the command in this process, perhaps with a text on its standard input."""
    return testing.CliRunner().invoke(app.tfparallel, arguments, text, **options)


def run(*arguments: str | os.PathLike[str], **options: Any) -> Ended:
    """Run the command as a program; for the options, see `execute`."""
    return execute(*PROGRAM, *arguments, **options)


def execute(
    *program: str | os.PathLike[str],
    folder: pathlib.Path | None = None,
    check: bool = False,
    **options: Any,
) -> Ended:
    """Run a program in a folder and capture its output; `options` are those of `subprocess`."""
    return subprocess.run(
        program, cwd=folder, capture_output=True, text=True, check=check, **options
    )


def where(namespace: Any) -> tuple[str, ...]:
    """Return the options that lead to a namespace of a test cluster."""
    return "--namespace", namespace.name, "--kubeconfig", str(namespace.cluster.kubeconfig)
