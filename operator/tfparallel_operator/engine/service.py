"""The operator's process as one group of tasks: when one of them ends, all of it ends.

Of several operators every one watches, answers probes and takes reports of progress, so that all
are ready; the one that holds the Lease acts besides. One that loses it ends, for it starts from
nothing and leaves nothing behind.
"""

import asyncio
import dataclasses
import datetime
import logging
import signal
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from tfparallel_operator import wall_clock
from tfparallel_operator.api_server import client, credentials, errors
from tfparallel_operator.core import build
from tfparallel_operator.engine import (
    children,
    context,
    jobs,
    lease,
    metrics,
    observe,
    probes,
    progress,
    publisher,
    queue,
    reconcile,
    serving,
    settings,
    timers,
    tls,
    tokens,
    watch,
)

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

CERTIFICATE_CHECK = datetime.timedelta(hours=12)
"""How often the age of the progress endpoint's certificate is looked at."""

LOOK_SPACING_SECONDS = 0.05
"""From one look at a job to the next, at least: a flood of events on a job costs few looks."""

ASK_AGAIN_SECONDS = 2.0
"""Pause before the API server is asked again for what nothing goes on without."""


class MemberEnded(Exception):  # noqa: N818 (what has happened)
    """A task that should run for ever has returned."""


class _Stopped(Exception):  # noqa: N818
    """The process was asked to end."""


def _untold() -> None:
    """Tell nobody."""


async def run(
    wanted: settings.Settings, stop: asyncio.Event, listed: Callable[[], None] = _untold
) -> None:
    """Run the operator until `stop` is set, or until a part of it fails.

    Args:
        wanted: what the installation decides.
        stop: asks for the end.
        listed: called once all that there was at the start has been seen.

    Raises:
        ExceptionGroup: what failed; nothing when the end was asked for.
    """
    access = credentials.find(wanted.kubeconfig)
    counted = metrics.Metrics()
    # A renewal of the Lease waits for nothing else, so it has connections and slots of its own.
    async with (
        client.Client(access, called=counted.called) as api,
        client.Client(access, called=counted.called) as lease_api,
    ):
        bundle = None
        if wanted.progress_host:
            secret = (wanted.namespace, wanted.tls_secret, wanted.progress_host)
            bundle = await _patiently(lambda: tls.ensure(api, *secret))
        await Operator(api, wanted, bundle, counted, lease_api).run(stop, listed)


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until the API server answers: who ends instead is started later and later."""
    while True:
        try:
            return await ask()
        except errors.Unavailable as error:
            _LOG.warning("%s; again in %.0f s", error, ASK_AGAIN_SECONDS)
            await asyncio.sleep(ASK_AGAIN_SECONDS)


class Operator:
    """All parts of the operator, made and joined."""

    def __init__(
        self,
        api: client.Client,
        wanted: settings.Settings,
        bundle: tls.Bundle | None,
        counted: metrics.Metrics,
        lease_api: client.Client | None = None,
    ) -> None:
        self._api = api
        self._wanted = wanted
        self._bundle = bundle
        self._metrics = counted
        namespaces = wanted.watch_namespaces
        self._lease = _lease(lease_api or api, wanted) if wanted.lease else None
        self._queue: queue.Queue[queue.Key] = queue.Queue(
            opened=False, spacing=LOOK_SPACING_SECONDS
        )
        self._timers = timers.Timers(self._queue.add)
        self._jobs = jobs.Jobs(self._queue, self._job_changed)
        self._children = children.Children(api, namespaces, self._changed)
        self._sweeper = watch.Sweeper(api, self._jobs, namespaces)
        self._jobs_listed = False
        counted.registry.register(metrics.State(self._jobs, self._queue, self._children))

    async def run(self, stop: asyncio.Event, listed: Callable[[], None] = _untold) -> None:
        """Run all parts until `stop` is set or one ends; tell `listed` of the first lists."""
        take_signals(stop)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_until(stop))
                spawn(group, "probes", self._serve_probes())
                spawn(group, "children", self._children.run())
                await self._children.wait_synced()
                await self._sweeper.sweep()
                self._jobs_listed = True
                listed()
                _LOG.info("watching %s", ", ".join(self._wanted.watch_namespaces) or "all jobs")
                spawn(group, "sweeper", self._sweeper.run())
                if self._bundle is not None:
                    self._spawn_progress(group, self._bundle)
                held = self._lease
                # Before kopf: at its end it cancels every task that began after it.
                spawn(group, "jobs", self._act() if held is None else self._lead(held))
                spawn(group, "watch", self._follow(stop))
        except* _Stopped:
            _LOG.info("asked to end")

    @property
    def ready(self) -> bool:
        """Whether everything that there was at the start has been seen."""
        return not probes.ready(self._children, self._jobs_listed)

    async def _lead(self, held: lease.Lease) -> None:
        """Act as soon as no other operator does, and say so when it ends."""
        await held.acquire()
        try:
            async with asyncio.TaskGroup() as group:
                spawn(group, "lease", held.keep())
                await self._catch_up()
                spawn(group, "work", self._act(held.check))
        finally:
            await held.release()

    async def _catch_up(self) -> None:
        """Learn all that the last leader has done: the watches may not have told of it yet.

        A job that is known better than its pods would seem to have lost them.
        """
        await _patiently(self._children.refresh)
        await _patiently(self._sweeper.sweep)

    async def _act(self, may_write: Callable[[], None] = lambda: None) -> None:
        """Bring all jobs on, for ever."""
        engine = context.Context(
            self._api,
            self._jobs,
            self._children,
            self._queue,
            self._timers,
            self._metrics,
            self._build_settings(),
            self._wanted.instance,
            may_write,
        )
        workers = reconcile.Workers(engine)
        self._queue.open(self._jobs.keys())
        async with asyncio.TaskGroup() as group:
            spawn(group, "timers", self._timers.run())
            for number in range(self._wanted.workers):
                spawn(group, f"worker {number}", workers.run())

    def _job_changed(self, before: jobs.Body | None, after: jobs.Body) -> None:
        if self._queue.opened:  # What happens to a job is counted by the operator that acts.
            self._metrics.job_changed(before, after)

    def _spawn_progress(self, group: asyncio.TaskGroup, bundle: tls.Bundle) -> None:
        writer = publisher.Publisher(self._api, self._jobs)
        endpoint = progress.Endpoint(
            self._jobs, self._children, tokens.Tokens(self._api), writer, self._metrics
        )
        context = bundle.context()
        served = serving.serve(endpoint.application(), self._wanted.progress_port, context)
        spawn(group, "progress", served)
        spawn(group, "publisher", writer.run())
        spawn(group, "certificates", self._renew(context))

    async def _renew(self, context: ssl.SSLContext) -> None:
        """Exchange the certificate under the running server before it ends."""
        while True:
            await asyncio.sleep(CERTIFICATE_CHECK.total_seconds())
            wanted = self._wanted
            try:
                bundle = await tls.ensure(
                    self._api, wanted.namespace, wanted.tls_secret, wanted.progress_host
                )
            except errors.ApiError as error:
                _LOG.warning("certificates: %s; again in %s", error, CERTIFICATE_CHECK)
            else:
                bundle.load_into(context)

    async def _follow(self, stop: asyncio.Event) -> None:
        await watch.follow(
            self._api.access,
            self._jobs,
            self._wanted.watch_namespaces,
            started=lambda: take_signals(stop),
        )

    async def _serve_probes(self) -> None:
        application = probes.application(
            lambda: probes.healthy(self._children, self._queue),
            lambda: probes.ready(self._children, self._jobs_listed),
            self._metrics.route(),
        )
        await serving.serve(application, self._wanted.health_port)

    def _changed(self, owner: observe.Owner) -> None:
        self._queue.add(queue.Key(owner.namespace, owner.name))

    def _build_settings(self) -> build.Settings:
        plain = build.Settings(
            trainer_image=self._wanted.trainer_image,
            trainer_pull_secrets=self._wanted.trainer_pull_secrets,
            gangs=self._wanted.gangs,
            queues=True,
        )
        if self._bundle is None:
            return plain
        return dataclasses.replace(
            plain,
            progress_url=f"https://{self._wanted.progress_host}:{self._wanted.progress_port}",
            progress_ca=self._bundle.authorities,
            listening_since=wall_clock.utc_now(),
        )


def _lease(api: client.Client, wanted: settings.Settings) -> lease.Lease:
    terms = lease.Terms(
        wanted.namespace, wanted.lease, holder=wanted.instance, seconds=wanted.lease_seconds
    )
    return lease.Lease(api, terms)


def spawn(group: asyncio.TaskGroup, name: str, member: Coroutine[Any, Any, None]) -> None:
    """Start a part that should run for ever: the group ends when it fails, and when it returns."""

    async def run() -> None:
        await member
        raise MemberEnded(f"the operator's part {name!r} has ended, which it never should")

    group.create_task(run(), name=name)


def take_signals(stop: asyncio.Event) -> None:
    """Have SIGTERM and SIGINT set `stop`. kopf takes them over when it starts; it is asked last."""
    if threading.current_thread() is threading.main_thread():
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()
    raise _Stopped
