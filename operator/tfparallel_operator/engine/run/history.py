"""What follows when the API server's history goes back: etcd was restored from an older copy.

Resource versions only grow, and a list is never answered from behind: see `Client.current_version`.
That holds where one of several API servers lags, too. So a list below a version that was known
before it was asked for proves a restore.

What is known of jobs and of their children then belongs to two histories. Nothing is written until
both have been listed again.
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
"""Pause before all is listed again, if the API server has not answered."""


class History:
    """Starts again from what the API server has, and has kopf's watch do the same."""

    def __init__(
        self, followed: children.Children, jobs: sweeper.Sweeper, counted: metrics.Metrics
    ) -> None:
        self._children = followed
        self._jobs = jobs
        self._metrics = counted
        self._is_rewound = asyncio.Event()
        self.rewinds = 0
        """How often all was listed again: what was concluded from versions before may be wrong."""
        self._was_away = False
        """Whether the API server did not answer kopf, so that jobs have to be listed."""

    def rewind(self) -> None:
        """Have all be listed again: a part of what is known is of another history."""
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
                # A job that is known better than its pods would seem to have lost them.
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
        """Have a watch of kopf's go on from where the API server is, as a middleware of aiohttp.

        kopf goes on from the last version that it has seen. If that is yet to come again, the API
        server answers and stays silent.
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
            if self._was_away:  # By now a restored history may have come past kopf's version.
                await self._jobs.sweep()
                self._was_away = False
        except errors.ApiError as error:
            _LOG.info("where the watch of jobs goes on is not known: %s", error)
        return version
