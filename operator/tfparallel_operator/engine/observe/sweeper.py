"""Lists all jobs, at the start and from time to time: kopf does not report deletions it missed."""

import asyncio
import logging

from tfparallel_operator.api import names
from tfparallel_operator.api_server import client, errors, resources
from tfparallel_operator.engine.observe import informer, jobs
from tfparallel_operator.engine.workqueue import queue

_LOG = logging.getLogger(__name__)

SWEEP_SECONDS = 600.0
"""How often all jobs are listed."""


class NotInstalled(Exception):  # noqa: N818 (a sentence for whoever started the operator)
    """The API server does not know TFParallelJob."""


class Sweeper:
    """Lists the jobs of some namespaces, or of all."""

    def __init__(
        self,
        api: client.Client,
        job_store: jobs.Jobs,
        namespaces: tuple[str, ...],
        rewound: informer.Rewound = lambda: None,
    ) -> None:
        self._api = api
        self._jobs = job_store
        self._rewound = rewound
        self._sweeping = asyncio.Lock()
        self._scopes: tuple[str | None, ...] = namespaces or (None,)

    async def version(self) -> int:
        """Return the current resource version of the API server.

        Raises:
            errors.ApiError: it cannot be read.
        """
        return await self._api.current_version(resources.JOBS, self._scopes[0])

    async def sweep(self) -> int:
        """List all jobs and queue each; return the lowest version of the lists.

        Raises:
            NotInstalled: the custom resource is not there.
            errors.ApiError: the list cannot be read.
        """
        async with self._sweeping:
            return min([await self._list(scope) for scope in self._scopes])

    async def list(self, scope: str | None) -> int:
        """List the jobs of a namespace, or of all, and return the version of the list.

        Raises:
            NotInstalled: the custom resource is not there.
            errors.ApiError: the list cannot be read.
        """
        async with self._sweeping:
            return await self._list(scope)

    async def _list(self, scope: str | None) -> int:
        keys: set[queue.Key] = set()
        version, newest = 0, self._jobs.newest
        try:
            # Page by page, because thousands of jobs at once would block the event loop.
            async for page in self._api.pages(resources.JOBS, scope):
                version = int(page.version)
                if version < newest:  # Later pages are of the same version.
                    self._jobs.rewind(version)
                    self._rewound()
                    newest = version
                self._jobs.add_page(page.items, version)
                keys.update(map(jobs.key_of, page.items))
        except errors.NotFound as error:
            raise NotInstalled(
                f"the API server does not know {names.PLURAL}.{names.GROUP}: install the "
                "custom resource definition, a part of the chart and of manifests/, "
                "and start the operator again"
            ) from error
        self._jobs.keep(keys, version, scope)
        return version

    async def run(self) -> None:
        """Sweep every `SWEEP_SECONDS`, forever."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self.sweep()
            except errors.ApiError as error:
                _LOG.warning("sweep: %s; again in %.0f s", error, SWEEP_SECONDS)
