"""kopf follows the jobs: one handler that stores and enqueues, nothing that writes on them."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import kopf

from tfparallel_operator.api import names
from tfparallel_operator.api_server import client, credentials, errors, resources
from tfparallel_operator.engine import jobs

_LOG = logging.getLogger(__name__)

SWEEP_SECONDS = 600.0
"""How often all jobs are listed: kopf does not report deletions that it missed."""


class NotInstalled(Exception):  # noqa: N818 (a sentence for whoever started the operator)
    """The API server does not know TFParallelJob."""


class Sweeper:
    """Lists all jobs, at the start and from time to time."""

    def __init__(self, api: client.Client, known: jobs.Jobs, namespaces: tuple[str, ...]) -> None:
        self._api = api
        self._jobs = known
        self._scopes: tuple[str | None, ...] = namespaces or (None,)

    async def sweep(self) -> None:
        """List all jobs once, and have each looked at.

        Raises:
            NotInstalled: the custom resource is not there.
            errors.ApiError: the list cannot be read.
        """
        for scope in self._scopes:
            try:
                listing = await self._api.list(resources.JOBS, scope)
            except errors.NotFound as error:
                raise NotInstalled(
                    f"the API server does not know {names.PLURAL}.{names.GROUP}: install the "
                    "custom resource definition, a part of the chart and of manifests/, "
                    "and start the operator again"
                ) from error
            self._jobs.swept(listing, scope)

    async def run(self) -> None:
        """Sweep from time to time, for ever."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self.sweep()
            except errors.ApiError as error:
                _LOG.warning("sweep: %s; again in %.0f s", error, SWEEP_SECONDS)


async def follow(
    access: credentials.Access,
    known: jobs.Jobs,
    namespaces: tuple[str, ...],
    started: Callable[[], None],
) -> None:
    """Run kopf until it is cancelled or fails.

    Args:
        access: how the API server is reached.
        known: where jobs are stored, and enqueued.
        namespaces: which namespaces are followed; empty: all.
        started: called once kopf has taken over the process's signals.
    """
    ready = asyncio.Event()

    async def tell() -> None:
        await ready.wait()
        started()

    async with asyncio.TaskGroup() as group:
        group.create_task(tell())
        await kopf.operator(
            registry=_registry(access, known),
            settings=_settings(),
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            ready_flag=ready,
        )


def _registry(access: credentials.Access, known: jobs.Jobs) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    async def login(**_: Any) -> kopf.AiohttpSession:
        # kopf closes what it is given, so it has a session of its own.
        return kopf.AiohttpSession(server=access.server, aiohttp_session=access.session())

    async def on_job(event: kopf.RawEvent, **_: Any) -> None:
        known.watched(event["type"], event["object"])

    kopf.on.login(registry=registry)(login)
    kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)(on_job)
    return registry


def _settings() -> kopf.OperatorSettings:
    """Watch and nothing else; give up a stream that neither events nor bookmarks come from."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.watching.connect_timeout = credentials.CONNECT_TIMEOUT_SECONDS
    settings.watching.server_timeout = client.WATCH_SECONDS[1]
    settings.watching.inactivity_timeout = client.WATCH_SILENCE_SECONDS
    settings.watching.chunk_size = client.PAGE
    settings.queueing.idle_timeout = 0.5
    # kopf warns of jobs whose events it has not passed on by then; it takes as long as it needs.
    settings.queueing.exit_timeout = 10.0
    settings.networking.request_timeout = credentials.READ_TIMEOUT_SECONDS
    # The API server may be away for two minutes; then the process ends and is started anew.
    settings.networking.error_backoffs = (1, 2, 5, *[10] * 12)
    # kopf would kill the process by itself; the kubelet does that when it takes too long.
    settings.process.ultimate_exiting_timeout = None
    return settings
