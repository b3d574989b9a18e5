"""Prints sentences: broken between words on a terminal, and whole in a file.

They may quote pods and the API server, so control characters are escaped.
"""

import re
import shutil
import sys
import textwrap

import click

from tfparallel_trainer.contract import plain_text

_GLUE = "\0"
"""A character for a space at which a line must not break."""


def echo(text: str, *, is_error: bool = False) -> None:
    """Print text that others may have written; `display.consoles` do the same for tables."""
    click.echo(plain_text.escape(text, keep="\n\t"), err=is_error)


def say(text: str) -> None:
    """Print a note to standard error."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        text = "\n".join(wrapped for line in text.splitlines() for wrapped in wrap(line, width))
    echo(text, is_error=True)


def wrap(text: str, width: int, indent: int = 0) -> list[str]:
    """Break text into lines, but never a command, so that you can copy it."""
    glued = re.sub(r"`[^`]+`", lambda command: command[0].replace(" ", _GLUE), text)
    lines = textwrap.wrap(
        glued,
        width,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [line.replace(_GLUE, " ") for line in lines] or [""]
