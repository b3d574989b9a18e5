"""The reference of the command, docs/reference/cli.md, from its verbs."""

import inspect
import pathlib
from collections.abc import Iterator

import click

from tfparallel.cli import app, exits

FILE = pathlib.Path(__file__).resolve().parents[1] / "docs/reference/cli.md"

_EXIT_CODES = (
    (0, "The verb did what you asked. `run`, and `submit` without `-d`: the job succeeded."),
    (
        exits.FAILED,
        "The job failed, or the cluster refuses, does not answer, or is missing.",
    ),
    (
        exits.BAD_INPUT,
        "Bad input: an option, a file, a field, or the name of a job. Nothing was changed.",
    ),
    (exits.SIGNAL + 2, "You ended the command with Ctrl-C."),
)
_EXIT_PARAGRAPH = "Exit status:"


def page(header: str) -> str:
    """Return the page as Markdown."""
    group = app.tfparallel
    context = click.Context(group, info_name="tfparallel")
    lines = [
        f"<!-- {header} -->",
        "",
        "# Command reference",
        "",
        "`tfparallel` trains jobs on your machine and on a cluster. To get it, see "
        "[Install the command](../get-started/install-command.md). `tfparallel VERB -h` prints its "
        "help.",
        "",
        *_synopsis(group, context),
        *_options(group, context),
        "## Exit codes",
        "",
        "Results go to standard output. Errors and progress go to standard error.",
        "",
        "| exit code | meaning |",
        "|---|---|",
        *(f"| {code} | {meaning} |" for code, meaning in _EXIT_CODES),
        "",
        "Another signal gives 128 plus its number: 143 after SIGTERM. A pod has "
        "[exit codes of its own](reasons.md#exit-codes).",
        "",
    ]
    for title, verbs in app.SECTIONS.items():
        lines += [f"## {title}", ""]
        for name in verbs:
            verb = group.get_command(context, name)
            if verb is None:
                raise ValueError(f"section {title!r} lists {name!r}, which is no verb")
            lines += _verb(verb, click.Context(verb, info_name=name, parent=context))
    return "\n".join(lines[:-1]) + "\n"


def _verb(verb: click.Command, context: click.Context, level: int = 3) -> Iterator[str]:
    yield from (f"{'#' * level} {verb.name}", "")
    paragraphs = inspect.cleandoc(verb.help or "").split("\n\n")
    status = [text for text in paragraphs if text.startswith(_EXIT_PARAGRAPH)]
    for text in paragraphs:
        if text not in status:
            yield from (_flat(text), "")
    yield from _synopsis(verb, context)
    yield from _options(verb, context)
    for text in status:
        yield from (_flat(text), "")
    if isinstance(verb, click.Group):
        for name, noun in verb.commands.items():
            yield from _verb(noun, click.Context(noun, info_name=name, parent=context), level + 1)


def _synopsis(command: click.Command, context: click.Context) -> Iterator[str]:
    pieces = " ".join(command.collect_usage_pieces(context))
    yield from ("```text", f"{context.command_path} {pieces}".rstrip(), "```", "")


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    records = [
        record
        for parameter in command.params
        if isinstance(parameter, click.Option)
        and (record := parameter.get_help_record(context)) is not None
    ]
    if records:
        yield from ("| option | meaning |", "|---|---|")
        for names, meaning in records:
            yield f"| `{_cell(names.replace(' RANGE', ''))}` | {_cell(_flat(meaning))} |"
        yield ""


def _flat(text: str) -> str:
    """Return text on one line, in which Markdown takes nothing for a tag."""
    return " ".join(text.split()).replace("<", "&lt;")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
