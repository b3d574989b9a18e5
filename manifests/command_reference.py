"""The reference of the command from its verbs."""

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

import manifests
from testing import pages, paths
from tfparallel.cli import app, exits

FILE = paths.PAGES / "reference/cli.md"

_EXIT_CODES = {
    0: "The verb did what you asked. `run`, and `submit` without `-d`: the job succeeded.",
    exits.FAILED: "The job failed, or the cluster refuses, does not answer, or is missing.",
    exits.BAD_INPUT: "Bad input: an option, a file, a field, or the name of a job. Nothing was"
    " changed.",
    exits.SIGNAL + 2: "You ended the command with Ctrl-C.",
}
_EXIT_PARAGRAPH = "Exit status:"


def files() -> dict[Path, str]:
    """Return the page.

    Raises:
        ValueError: a section of the help lists a verb that does not exist.
    """
    group = app.tfparallel
    context = click.Context(group, info_name="tfparallel")
    codes = pages.table(
        ("exit code", "meaning"), [(str(code), text) for code, text in _EXIT_CODES.items()]
    )
    head = f"""<!-- {manifests.header("client/tfparallel/cli")} -->

# Command reference

`tfparallel` trains jobs on your machine and on a cluster. To get it, see \
[Install the command](../get-started/install-command.md). `tfparallel VERB -h` prints its help.

{_synopsis(group, context)}{_options(group, context)}## Exit codes

Results go to standard output. Errors and progress go to standard error.

{codes}
Another signal gives 128 plus its number: 143 after SIGTERM. A pod has \
[exit codes of its own](reasons.md#exit-codes).

"""
    parts = [head]
    for title, verbs in app.SECTIONS.items():
        parts.append(f"## {title}\n\n")
        for name in verbs:
            verb = group.get_command(context, name)
            if verb is None:
                raise ValueError(f"section {title!r} lists {name!r}, which is no verb")
            parts += _verb(verb, click.Context(verb, info_name=name, parent=context))
    return {FILE: "".join(parts).removesuffix("\n")}


def _verb(verb: click.Command, context: click.Context, level: int = 3) -> Iterator[str]:
    """Yield the parts of a verb, and of those below it."""
    yield f"{'#' * level} {verb.name}\n\n"
    paragraphs = [_flat(text) for text in inspect.cleandoc(verb.help or "").split("\n\n")]
    status = [text for text in paragraphs if text.startswith(_EXIT_PARAGRAPH)]
    yield from (f"{text}\n\n" for text in paragraphs if text not in status)
    yield _synopsis(verb, context)
    yield _options(verb, context)
    yield from (f"{text}\n\n" for text in status)
    if isinstance(verb, click.Group):
        for name, noun in verb.commands.items():
            yield from _verb(noun, click.Context(noun, info_name=name, parent=context), level + 1)


def _synopsis(command: click.Command, context: click.Context) -> str:
    pieces = " ".join(command.collect_usage_pieces(context))
    return f"```text\n{context.command_path} {pieces}".rstrip() + "\n```\n\n"


def _options(command: click.Command, context: click.Context) -> str:
    records = (
        option.get_help_record(context)
        for option in command.params
        if isinstance(option, click.Option)
    )
    rows = [
        (f"`{record[0].replace(' RANGE', '')}`", _flat(record[1])) for record in records if record
    ]
    return pages.table(("option", "meaning"), rows) + "\n" if rows else ""


def _flat(text: str) -> str:
    """Return text on one line, in which Markdown takes nothing for a tag."""
    return " ".join(text.split()).replace("<", "&lt;")
