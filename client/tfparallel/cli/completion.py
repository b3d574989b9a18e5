"""`tfparallel completion`."""

import sys

import click
from click import shell_completion

from tfparallel.cli import app

_VARIABLE = "_TFPARALLEL_COMPLETE"

_DIRECTIVES = {"file": 0, "dir": 16}
"""A directive of Cobra for kubectl's completion. 4: complete neither files nor folders."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a script that completes verbs, options and names in your shell.

    For bash: source <(tfparallel completion bash).

    The cluster has a second to name its jobs and namespaces; without an answer, none are completed.
    """
    kind = shell_completion.get_completion_class(shell)
    if kind is not None:
        root = ctx.find_root()
        click.echo(kind(root.command, {}, "tfparallel", _VARIABLE).source())


def answer_kubectl() -> None:
    """Complete the last argument for kubectl, which calls `kubectl_complete-tfparallel`.

    Source: kubernetes/kubernetes#105867; the lines are those of Cobra's `__complete`.
    """
    *arguments, incomplete = sys.argv[1:]
    completion = shell_completion.ShellComplete(app.tfparallel, {}, "kubectl tfparallel", _VARIABLE)
    items = completion.get_completions(arguments, incomplete)
    for item in items:
        if item.type not in _DIRECTIVES:
            click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(f":{max((_DIRECTIVES.get(item.type, 4) for item in items), default=4)}")
