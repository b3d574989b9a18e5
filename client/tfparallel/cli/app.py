"""The verbs of the command line, and the options before them."""

import difflib
import importlib

import click

from tfparallel.cli import exits, options

SECTIONS = {
    "On this machine": ("init", "run", "validate", "plan", "compare", "rehearse", "convert"),
    "Look at jobs": ("status", "why", "logs", "events", "get", "tensorboard", "report"),
    "On a cluster": ("submit", "suspend", "resume", "scale", "delete"),
    "About the command": ("doctor", "completion", "version"),
}
"""Each verb is the attribute `command` of the module of its name."""

_WHOLE_SENTENCE = 200
"""Maximum length of a verb's summary. Click wraps such a summary, and cuts a longer one."""


class _Verbs(options.CommandGroup):
    """Imports a verb when it is used, and shows all of them in sections."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [verb for verbs in SECTIONS.values() for verb in verbs]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"tfparallel.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        verbs = self.list_commands(ctx)
        is_verb = args[0] in verbs or args[0].startswith("-")
        if not is_verb and not ctx.resilient_parsing:  # Completion says nothing of wrong words.
            near = difflib.get_close_matches(args[0], verbs, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(verbs)}"
            raise click.UsageError(f"there is no verb {args[0]!r}: {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, verbs in SECTIONS.items():
            commands = {verb: self.get_command(ctx, verb) for verb in verbs}
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (verb, command.get_short_help_str(limit=_WHOLE_SENTENCE))
                        for verb, command in commands.items()
                        if command is not None
                    ]
                )

    def invoke(self, ctx: click.Context) -> object:
        with exits.reported(verbose=ctx.params["verbose"]):
            return super().invoke(ctx)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-v", "--verbose", is_flag=True, help="Show the traceback of an error.")
def tfparallel(verbose: bool) -> None:
    """Train TensorFlow models with TFParallelJob."""
