"""Lists all jobs, at the start and from time to time: kopf does not report deletions it missed."""

import asyncio
import logging

from tfparallel_operator.api import names
from tfparallel_operator.api_server import client, errors, resources
from tfparallel_operator.engine.observe import jobs
from tfparallel_operator.engine.workqueue import queue

_LOG = logging.getLogger(__name__)

SWEEP_SECONDS = 600.0
"""How often all jobs are listed."""


class NotInstalled(Exception):  # noqa: N818 (a sentence for whoever started the operator)
    """The API server does not know TFParallelJob."""


class Sweeper:
    """Lists the jobs of some namespaces, or of all."""

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
            keys: set[queue.Key] = set()
            version = 0
            try:
                # Page by page: thousands of jobs at once would hold up the event loop.
                async for page in self._api.pages(resources.JOBS, scope):
                    self._jobs.listed(page.items)
                    keys.update(map(jobs.key_of, page.items))
                    version = int(page.version)
            except errors.NotFound as error:
                raise NotInstalled(
                    f"the API server does not know {names.PLURAL}.{names.GROUP}: install the "
                    "custom resource definition, a part of the chart and of manifests/, "
                    "and start the operator again"
                ) from error
            self._jobs.keep(keys, version, scope)

    async def run(self) -> None:
        """Sweep from time to time, forever."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self.sweep()
            except errors.ApiError as error:
                _LOG.warning("sweep: %s; again in %.0f s", error, SWEEP_SECONDS)
