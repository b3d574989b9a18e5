"""Completes names of a cluster in the shell: jobs, replicas, namespaces and contexts.

The shell waits, so the cluster has a second to answer. If something fails, nothing is completed,
because an error would appear in the line that the user types.
"""

import asyncio
import contextlib
import functools
import importlib
import io
import threading
from collections.abc import Awaitable, Callable, Sequence

import click
from click import shell_completion

from tfparallel.backends.cluster import access, cluster_backend
from tfparallel_operator.api_server import resources

_SECONDS = 1.0
"""How long a cluster, or a login plugin, may take to answer."""

Question = Callable[[access.ConnectionOptions], Awaitable[Sequence[str]]]


def jobs(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the jobs of the namespace, without those that the line contains already."""
    listed = ctx.params.get(parameter.name or "") or ()
    typed = {listed} if isinstance(listed, str) else {*listed}
    return [name for name in _ask(_list_jobs, ctx, incomplete) if name not in typed]


def jobs_or_folders(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[shell_completion.CompletionItem]:
    """Return the jobs of the namespace. If none matches, let the shell complete folders."""
    items = [shell_completion.CompletionItem(name) for name in jobs(ctx, parameter, incomplete)]
    return items or [shell_completion.CompletionItem(incomplete, type="dir")]


def replicas(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the replicas of the job in the line."""
    question = functools.partial(_list_replicas, ctx.params["name"])
    return _ask(question, ctx, incomplete)


def namespaces(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the namespaces of the cluster."""
    return _ask(_list_namespaces, ctx, incomplete)


def contexts(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the contexts of the kubeconfig."""
    return _ask(_list_contexts, ctx, incomplete)


def _ask(question: Question, ctx: click.Context, incomplete: str) -> list[str]:
    """Return the names that begin like the word, or none if the answer takes too long.

    A thread asks, because a login plugin that hangs cannot be cancelled.
    """
    choice = access.ConnectionOptions(
        kubeconfig=ctx.params.get("kubeconfig"),
        context=ctx.params.get("context"),
        namespace=ctx.params.get("namespace"),
    )
    names: list[str] = []

    def answer() -> None:
        with contextlib.suppress(Exception):  # whatever it is: the shell shows no errors
            names.extend(asyncio.run(_within_time(question, choice)))

    importlib.import_module("kubernetes.config")  # slow, and no fault of the cluster
    with contextlib.redirect_stderr(io.StringIO()):
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        thread.join(_SECONDS)
    return [name for name in names if name.startswith(incomplete)]


async def _within_time(question: Question, choice: access.ConnectionOptions) -> Sequence[str]:
    async with asyncio.timeout(_SECONDS):
        return await question(choice)


async def _list_jobs(choice: access.ConnectionOptions) -> Sequence[str]:
    async with cluster_backend.ClusterBackend(access.find(choice)) as cluster:
        return [job.name for job in await cluster.list_jobs()]


async def _list_replicas(job: str, choice: access.ConnectionOptions) -> Sequence[str]:
    async with cluster_backend.ClusterBackend(access.find(choice)) as cluster:
        return [replica.name for replica in await cluster.list_replicas(await cluster.get_job(job))]


async def _list_namespaces(choice: access.ConnectionOptions) -> Sequence[str]:
    async with cluster_backend.ClusterBackend(access.find(choice)) as cluster:
        listing = await cluster.api.list(resources.NAMESPACES, None)
    return [body["metadata"]["name"] for body in listing.items]


async def _list_contexts(choice: access.ConnectionOptions) -> Sequence[str]:
    return access.list_contexts(choice)
