"""Options that several verbs take, and how a verb reaches a cluster."""

import asyncio
import enum
import functools
import os
import pathlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import click

from tfparallel import backend as jobs
from tfparallel.backends.cluster import access, cluster_backend
from tfparallel.backends.local import container_variables as local_variables
from tfparallel.cli import complete
from tfparallel.results import folder
from tfparallel_operator.api import names

T = TypeVar("T")

FILE = click.Path(path_type=pathlib.Path)

job_file = click.argument("job", type=FILE, metavar="JOB.yaml")


def bare_names(_context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
    """Return names of jobs without the kind that kubectl and `-o name` put before them."""
    if isinstance(value, tuple):
        return tuple(map(_bare_name, value))
    return value and _bare_name(value)


def _bare_name(name: str) -> str:
    kind, _, name_part = name.partition("/")
    kinds = (names.SINGULAR, names.PLURAL, names.SHORT_NAME)
    return name_part if kind.removesuffix(f".{names.GROUP}") in kinds else name


job_name = click.argument("name", metavar="JOB", shell_complete=complete.jobs, callback=bare_names)

job_or_folder = click.argument(
    "name",
    metavar="JOB|FOLDER",
    shell_complete=complete.jobs_or_folders,
    callback=bare_names,
)

overrides = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Change a field of the job, such as spec.trainer.epochs=3; null removes it. Repeatable.",
)


def variables(verb: Callable[..., None]) -> Callable[..., None]:
    """Add the options that set variables; the verb takes them by name as `variables`."""

    @click.option(
        "--env",
        "assignments",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="Set a variable of every replica, and replace the job's; NAME alone passes your value."
        " Repeatable.",
    )
    @click.option(
        "--env-file",
        "env_files",
        type=FILE,
        multiple=True,
        metavar="FILE",
        help="A file with such variables, one a line; # starts a comment. Repeatable.",
    )
    @functools.wraps(verb)
    def with_variables(
        *arguments: Any,
        assignments: Sequence[str],
        env_files: Sequence[pathlib.Path],
        **more: Any,
    ) -> None:
        parsed = local_variables.parse_overrides(assignments, env_files, os.environ)
        verb(*arguments, variables=parsed, **more)

    return with_variables


def output_folder(meaning: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option for the folder in which a verb writes."""
    return click.option("--output", type=FILE, metavar="DIR", help=meaning)


class Format(enum.StrEnum):
    """The format of a verb's output."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


class CommandGroup(click.Group):
    """A command with verbs or nouns; without one it prints its help, as kubectl does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Print the help if the command line has no verb."""
        return super().parse_args(ctx, args if args or ctx.resilient_parsing else ["--help"])


epochs = click.option(
    "--epochs", type=click.IntRange(min=1), help="Short for --set spec.trainer.epochs."
)


def with_epochs(assignments: Sequence[str], epochs: int | None) -> Sequence[str]:
    """Return the changes to a job, including that of `--epochs`."""
    if epochs is None:
        return assignments
    return (*assignments, f"spec.trainer.epochs={epochs}", "spec.trainer.steps=null")


results = click.option(
    "--path",
    metavar="PATH",
    help="Folder of a script's results in its container.  [default: where it mounts its claim]",
)

output_format = click.option(
    "-o",
    "--output",
    "output_format",
    type=click.Choice([name.value for name in Format]),
    default=Format.TABLE.value,
    show_default=True,
    help="Format of the output.",
)


def cluster(verb: Callable[..., None]) -> Callable[..., None]:
    """Add the options of kubectl that choose a cluster; the verb takes them as `choice`."""

    @click.option(
        "--context",
        metavar="NAME",
        shell_complete=complete.contexts,
        help="Context of the kubeconfig.  [default: the current]",
    )
    @click.option(
        "-n",
        "--namespace",
        metavar="NAME",
        shell_complete=complete.namespaces,
        help="Namespace of the jobs.  [default: that of the context]",
    )
    @click.option(
        "--kubeconfig",
        metavar="FILE",
        type=click.Path(),
        help="Path of the kubeconfig.  [default: $KUBECONFIG, else ~/.kube/config]",
    )
    @functools.wraps(verb)
    def with_choice(
        *arguments: Any,
        context: str | None,
        namespace: str | None,
        kubeconfig: str | None,
        **more: Any,
    ) -> None:
        choice = access.ConnectionOptions(
            kubeconfig=kubeconfig, context=context, namespace=namespace
        )
        verb(*arguments, choice=choice, **more)

    return with_choice


def on_job_or_folder(
    name: str, choice: access.ConnectionOptions, act: Callable[[jobs.Backend], Awaitable[T]]
) -> T:
    """Act on the local run of a folder, or on the chosen cluster."""
    if not folder.is_run(name):
        return on_cluster(choice, act)

    async def opened() -> T:
        return await act(folder.open_run(pathlib.Path(name)))

    return asyncio.run(opened())


def on_cluster(
    choice: access.ConnectionOptions, act: Callable[[cluster_backend.ClusterBackend], Awaitable[T]]
) -> T:
    """Connect to the chosen cluster and act there."""

    async def connected() -> T:
        async with cluster_backend.ClusterBackend(access.find(choice)) as cluster:
            return await act(cluster)

    return asyncio.run(connected())
