"""Exit statuses of the command, and the sentence for each."""

import contextlib
import sys
import traceback
from collections.abc import Iterator
from typing import NoReturn

import click

from tfparallel import errors
from tfparallel.terminal import wrapping
from tfparallel_operator.api import load

FAILED = 1
BAD_INPUT = 2
SIGNAL = 128
"""The exit status of a signal is this plus its number, such as 130 after Ctrl-C."""


@contextlib.contextmanager
def reported(*, verbose: bool) -> Iterator[None]:
    """Turn errors into sentences on standard error, and into an exit status.

    Args:
        verbose: whether the traceback is shown too.
    """
    try:
        yield
    except load.SpecError as error:
        _end(BAD_INPUT, error.problems, verbose=verbose)
    except errors.Failure as error:
        _end(FAILED, (str(error),), verbose=verbose)
    except errors.Stopped as error:
        sys.exit(SIGNAL + error.number)
    except KeyboardInterrupt:
        sys.exit(SIGNAL + 2)
    except click.UsageError as error:
        _end(BAD_INPUT, (_usage_sentence(error),), verbose=verbose)
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except Exception as error:
        sentence = f"unexpected {type(error).__name__}: {error}; run it again as `tfparallel -v …`"
        _end(FAILED, (sentence + " and report what it shows",), verbose=verbose)


def _usage_sentence(error: click.UsageError) -> str:
    """Return what is wrong with a command line, and where its syntax is documented."""
    message = error.format_message().rstrip(".")
    command = "tfparallel" if error.ctx is None else error.ctx.command_path
    if message[1:2].islower():  # click begins with a capital, a sentence after `error:` does not
        message = message[0].lower() + message[1:]
    return f"{message}; see `{command} --help`"


def _end(status: int, sentences: tuple[str, ...], *, verbose: bool) -> NoReturn:
    if verbose:
        wrapping.echo(traceback.format_exc(), is_error=True)
    for sentence in sentences:
        wrapping.say(f"error: {sentence}")
    sys.exit(status)
