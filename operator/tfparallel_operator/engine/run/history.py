"""Recovery after somebody restores etcd from an older copy.

Resource versions only grow, and a list is never older than the request for it, even if one of
several API servers lags (`Client.current_version`). So a list whose version is lower than a version
that was known before the request proves a restore.

Stored jobs and children then belong to two histories. The operator writes nothing until it has
listed both again.
"""

import asyncio
import logging

import aiohttp

from tfparallel_operator.api import names
from tfparallel_operator.api_server import errors
from tfparallel_operator.engine.observe import children, sweeper
from tfparallel_operator.engine.telemetry import metrics

_LOG = logging.getLogger(__name__)

AGAIN_SECONDS = 2.0
"""Pause before the lists are tried again, if the API server has not answered."""


class History:
    """Lists everything again after a restore, and makes kopf's watch continue from there."""

    def __init__(
        self, followed: children.ChildIndex, jobs: sweeper.Sweeper, counted: metrics.Metrics
    ) -> None:
        self._children = followed
        self._jobs = jobs
        self._metrics = counted
        self._is_rewound = asyncio.Event()
        self.rewinds = 0
        """Number of restores so far. Values that depend on older versions may be wrong."""
        self._was_away = False
        """Whether the API server did not answer kopf, so that the jobs must be listed."""

    def rewind(self) -> None:
        """List everything again, because a stored object belongs to another history."""
        if not self._is_rewound.is_set():
            self._metrics.rewound()
        self._is_rewound.set()

    def check(self) -> None:
        """Raise `Unavailable` while jobs and children may be of two histories."""
        if self._is_rewound.is_set():
            raise errors.Unavailable(
                "etcd was restored from an older copy: jobs and pods are listed again first"
            )

    async def run(self) -> None:
        """List children, then jobs, whenever the history has gone back; forever."""
        while True:
            await self._is_rewound.wait()
            try:
                # If a job were newer than its pods, these would seem to be lost.
                await self._children.refresh()
                await self._jobs.sweep()
            except errors.ApiError as error:
                _LOG.warning("listing all again: %s; again in %.0f s", error, AGAIN_SECONDS)
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                self.rewinds += 1
                self._is_rewound.clear()
                _LOG.warning("all jobs and children were listed again after a restore of etcd")

    async def resume(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Start a watch of kopf at the API server's version (a middleware of aiohttp).

        kopf continues from the last version that it has seen. If that is higher than the API
        server's, the watch stays silent.
        """
        version = request.url.query.get("resourceVersion", "")
        is_watch = request.url.path.endswith(f"/{names.PLURAL}") and "watch" in request.url.query
        if is_watch and version.isdecimal():
            first = await self._find_first_version(int(version))
            request.url = request.url.update_query(resourceVersion=str(first))
        try:
            return await handler(request)
        except (aiohttp.ClientError, TimeoutError):
            self._was_away = True
            raise

    async def _find_first_version(self, version: int) -> int:
        try:
            if await self._jobs.version() < version:
                self.rewind()
                return await self._jobs.sweep()
            if self._was_away:  # A restored history may already have passed kopf's version.
                await self._jobs.sweep()
                self._was_away = False
        except errors.ApiError as error:
            _LOG.info("the version from which to watch jobs is unknown: %s", error)
        return version
