"""`tfparallel completion`."""

import click
from click import shell_completion

_VARIABLE = "_TFPARALLEL_COMPLETE"


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
