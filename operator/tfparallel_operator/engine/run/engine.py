"""The engine: one group of tasks. A part that fails starts again, and the others go on.

Each replica of the operator watches, answers probes and accepts reports of progress, so all are
ready. The holder of the Lease also reconciles. If it loses the Lease, it exits, because a new
process starts without stale state. It also exits if the custom resource is not installed, or if a
setting is invalid.
"""

import asyncio
import contextlib
import dataclasses
import datetime
import itertools
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tfparallel_operator import wall_clock
from tfparallel_operator.api_server import client, credentials, errors
from tfparallel_operator.core import installation
from tfparallel_operator.engine.observe import children, records, sweeper
from tfparallel_operator.engine.observe.jobs import Body, Jobs, key_of
from tfparallel_operator.engine.reports import endpoint, serving, tls, tokens
from tfparallel_operator.engine.run import (
    gauges,
    lease,
    parts,
    probes,
    workers,
)
from tfparallel_operator.engine.run.history import History
from tfparallel_operator.engine.run.settings import Settings
from tfparallel_operator.engine.telemetry.metrics import Metrics
from tfparallel_operator.engine.workqueue import queue, timers
from tfparallel_operator.engine.write import publisher
from tfparallel_operator.engine.write.dependencies import Dependencies

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

CERTIFICATE_CHECK = datetime.timedelta(hours=12)
"""How often the age of the progress endpoint's certificate is checked."""

LOOK_SPACING_SECONDS = 0.05
"""Minimum time between two reconciles of a job, so that a flood of events costs few reconciles."""

ASK_AGAIN_SECONDS = 2.0
"""Pause before retrying a request that the start depends on."""


class Engine:
    """All parts of the operator except kopf.

    Args:
        api: an open client; None: the engine opens two, so that renewals of the Lease never wait.
    """

    def __init__(self, settings: Settings, api: client.Client | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self._clients: tuple[client.Client, ...] = ()
        if api is None:
            access, called = credentials.find(settings.kubeconfig), self.metrics.called
            self._clients = tuple(client.Client(access, called=called) for _ in range(2))
        self.api, lease_api = (api, api) if api else self._clients
        self._lease = _lease(lease_api, settings) if settings.lease else None
        namespaces = settings.watch_namespaces
        self._bundle: tls.Bundle | None = None
        self._acting: Dependencies | None = None
        """The dependencies of the workers, once this operator reconciles."""
        self._queue: queue.Queue[queue.Key] = queue.Queue(
            opened=False,
            spacing=LOOK_SPACING_SECONDS,
            most_of_namespace=settings.workers,
        )
        self._timers = timers.Timers(self._queue.add)
        self.jobs = Jobs(self._queue, self._job_changed)
        self._children = children.ChildIndex(
            self.api, namespaces, self._changed, rewound=self._rewound
        )
        self._sweeper = sweeper.Sweeper(self.api, self.jobs, namespaces, self._rewound)
        self.history = History(self._children, self._sweeper, self.metrics)
        self._listed = asyncio.Event()
        self._parts = parts.Parts(self.metrics.part_failed)
        self.metrics.registry.register(gauges.Gauges(self.jobs, self._queue, self._children))

    async def start(self) -> None:
        """Start all parts, and return after the first lists.

        Raises:
            ExceptionGroup: the parts that failed before.
        """
        self.task = asyncio.create_task(self._run(), name="engine")
        listed = asyncio.create_task(self._listed.wait())
        try:
            await asyncio.wait((self.task, listed), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.stop()
            raise
        finally:
            listed.cancel()
        if self.task.done():
            self.task.result()

    async def stop(self) -> None:
        """Stop all parts, and return when none of their requests is pending.

        Raises:
            ExceptionGroup: the parts that have failed.
        """
        self.task.cancel()
        await asyncio.wait((self.task,))
        if not self.task.cancelled():
            self.task.result()
        _LOG.info("asked to end")

    async def list_jobs(self, namespace: str | None) -> int:
        """List the jobs of a namespace, or of all, and return the version of the list.

        Raises:
            errors.ApiError: the list cannot be read.
        """
        return await self._sweeper.list(namespace)

    def problem(self) -> str:
        """Say why the process is stuck; empty: it is not."""
        return probes.healthy(self._children, self._queue)

    def missing(self) -> str:
        """Say why the process is not ready; empty: it is."""
        return self._parts.problem() or probes.ready(self._children, self._listed.is_set())

    async def _run(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for api_client in self._clients:
                await stack.enter_async_context(api_client)
            async with asyncio.TaskGroup() as group:
                self._parts.start(group, "probes", self._serve_probes, needs=OSError)
                if self.settings.progress_host:
                    self._bundle = await _retry(self._ensure_certificates)
                for name, watch in self._children.watches():
                    self._parts.start(group, f"children ({name})", watch)
                await self._children.wait_synced()
                await _retry(self._sweeper.sweep)
                self._listed.set()
                _LOG.info("watching %s", ", ".join(self.settings.watch_namespaces) or "all jobs")
                self._parts.start(group, "sweeper", self._sweeper.run)
                self._parts.start(group, "history", self.history.run)
                if self._bundle is not None:
                    self._spawn_progress(group, self._bundle)
                work = self._act() if self._lease is None else self._lead(self._lease)
                parts.spawn(group, "jobs", work)

    async def _ensure_certificates(self) -> tls.Bundle:
        options = self.settings
        return await tls.ensure(
            self.api, options.namespace, options.tls_secret, options.progress_host
        )

    async def _lead(self, leadership: lease.Lease) -> None:
        """Acquire the Lease, reconcile while holding it, then release it."""
        await leadership.acquire()
        try:
            async with asyncio.TaskGroup() as group:
                parts.spawn(group, "lease", leadership.keep())
                await self._catch_up()
                parts.spawn(group, "work", self._act(leadership.check))
        finally:
            await leadership.release()

    async def _catch_up(self) -> None:
        """List everything that the last leader has written, because watches may lag behind.

        Children come first: if a job were newer than its pods, these would seem to be lost.
        """
        await _retry(self._children.refresh)
        await _retry(self._sweeper.sweep)

    async def _act(self, may_write: Callable[[], None] = lambda: None) -> None:
        """Reconcile jobs until cancelled."""

        def check() -> None:
            may_write()
            self.history.check()

        self._acting = engine = Dependencies(
            self.api,
            self.jobs,
            self._children,
            self._queue,
            self._timers,
            self.metrics,
            self._build_settings(),
            self.settings.instance,
            check,
            rewinds=lambda: self.history.rewinds,
        )
        job_workers = workers.Workers(engine)
        # Deleted jobs may have left pods behind.
        keys = {*self.jobs.keys(), *itertools.starmap(queue.Key, self._children.pods.owners())}
        self._queue.open(keys)
        async with asyncio.TaskGroup() as group:
            for number in range(self.settings.workers + 1):  # One is left to other namespaces.
                self._parts.start(group, f"worker {number}", job_workers.run)

    def _job_changed(self, before: Body | None, after: Body) -> None:
        if self._queue.opened:  # What happens to a job is counted by the operator that acts.
            self.metrics.job_changed(before, after)

    def _spawn_progress(self, group: asyncio.TaskGroup, bundle: tls.Bundle) -> None:
        writer = publisher.Publisher(self.api, self.jobs)
        reports = endpoint.Endpoint(
            self.jobs,
            self._children,
            tokens.Tokens(self.api),
            writer,
            self._queue.add,
            self.metrics,
        )
        context = bundle.context()

        async def serve() -> None:
            await serving.serve(reports.application(), self.settings.progress_port, context)

        self._parts.start(group, "progress", serve, needs=OSError)
        self._parts.start(group, "publisher", writer.run)
        self._parts.start(group, "certificates", lambda: self._renew(context))

    async def _renew(self, context: ssl.SSLContext) -> None:
        """Renew the certificate of the running server before it expires."""
        while True:
            await asyncio.sleep(CERTIFICATE_CHECK.total_seconds())
            try:
                bundle = await self._ensure_certificates()
            except errors.ApiError as error:
                _LOG.warning("certificates: %s; again in %s", error, CERTIFICATE_CHECK)
            else:
                bundle.load_into(context)
                self._publish(bundle)

    def _publish(self, bundle: tls.Bundle) -> None:
        """If the authorities are new, queue all jobs, whose ConfigMaps contain them."""
        is_new = self._bundle is None or bundle.authorities != self._bundle.authorities
        self._bundle = bundle
        if is_new and self._acting is not None:
            self._acting.settings = dataclasses.replace(
                self._acting.settings, progress_ca=bundle.authorities
            )
            for key in map(key_of, self.jobs.bodies()):
                self._queue.add(key)

    async def _serve_probes(self) -> None:
        routes = [self.metrics.route()] if self.settings.metrics else []
        application = probes.application(self.problem, self.missing, *routes)
        await serving.serve(application, self.settings.health_port)

    def _rewound(self) -> None:
        self.history.rewind()

    def _changed(self, owner: records.Owner) -> None:
        self._queue.add(queue.Key(owner.namespace, owner.name))

    def _build_settings(self) -> installation.InstallationSettings:
        plain = installation.InstallationSettings(
            trainer_image=self.settings.trainer_image,
            trainer_pull_secrets=self.settings.trainer_pull_secrets,
            pod_defaults=self.settings.pod_defaults,
            restrictions=self.settings.restrictions,
            gangs=self.settings.gangs,
            queues=True,
            host_ports_of_namespace=self.settings.host_ports_per_namespace,
            installation=self.settings.installation_name,
        )
        if self._bundle is None:
            return plain
        return dataclasses.replace(
            plain,
            progress_url=f"https://{self.settings.progress_host}:{self.settings.progress_port}",
            progress_ca=self._bundle.authorities,
            listening_since=wall_clock.utc_now(),
        )


def _lease(api: client.Client, options: Settings) -> lease.Lease:
    terms = lease.Terms(options.namespace, options.lease, options.instance, options.lease_seconds)
    return lease.Lease(api, terms)


async def _retry(ask: Callable[[], Awaitable[T]]) -> T:
    """Retry until the API server answers. Exiting would lead to CrashLoopBackOff."""
    while True:
        try:
            return await ask()
        except errors.Unavailable as error:
            _LOG.warning("%s; again in %.0f s", error, ASK_AGAIN_SECONDS)
            await asyncio.sleep(ASK_AGAIN_SECONDS)
