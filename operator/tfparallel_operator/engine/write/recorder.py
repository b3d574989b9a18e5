"""Writes the Events of jobs: for people, so one that cannot be written is only logged.

What jobs need goes first. Where hundreds begin at once, no pod waits for an Event of type Normal: a
condition of the job's status says the same. Warnings are written at once, because an operator that
is killed loses the Events that wait.
"""

import asyncio
import collections
import contextlib
import datetime
import hashlib
import logging

from tfparallel_operator.api import names
from tfparallel_operator.api_server import client, errors, resources
from tfparallel_operator.core import decision
from tfparallel_operator.engine.observe import jobs
from tfparallel_operator.engine.write import context

_LOG = logging.getLogger(__name__)

NOTE_LIMIT = 1024
"""Most characters of an Event's note."""

LONGEST_WAIT_SECONDS = 5.0
"""How long an Event waits while there is work on jobs."""

MOST_WAITING = 1000
"""Events that may wait; who records another one waits, too."""

LAST_SECONDS = 5.0
"""How long an operator that ends writes what still waits."""


class Recorder:
    """Records Events; the same one of the same job is written once between two restarts.

    Its name is made of what it says, so that the API server itself refuses a repeat, also one by
    a restarted operator.
    """

    def __init__(self, engine: context.Context) -> None:
        self._engine = engine
        self._waiting: collections.deque[tuple[float, client.Object]] = collections.deque()
        self._room = asyncio.Semaphore(MOST_WAITING)
        self._some = asyncio.Event()

    async def record(self, body: jobs.Body, event: decision.Event, same: str = "") -> None:
        """Have one Event about a job written.

        Args:
            body: the job.
            event: what has happened.
            same: what another Event has to have in common with this one to be a repeat of it;
                empty: its message.
        """
        manifest = _manifest(body, event, same, self._engine.instance, self._engine.clock())
        if event.type is decision.EventType.WARNING:
            await self._write(manifest)
            return
        latest = asyncio.get_running_loop().time() + LONGEST_WAIT_SECONDS
        await self._room.acquire()
        self._waiting.append((latest, manifest))
        self._some.set()

    async def run(self) -> None:
        """Write Events in the order in which they were recorded, forever; at the end those left."""
        try:
            while True:
                await self._some.wait()
                latest, _ = self._waiting[0]
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(latest):
                        await self._engine.work.wait_idle()
                await self._write_first()
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_SECONDS):
                    while self._waiting:
                        await self._write_first()

    async def _write_first(self) -> None:
        """Write the Event that has waited longest; an end of the operator may repeat it."""
        _, manifest = self._waiting[0]
        await self._write(manifest)
        self._waiting.popleft()
        self._room.release()
        if not self._waiting:
            self._some.clear()

    async def _write(self, manifest: client.Object) -> None:
        engine, namespace = self._engine, manifest["metadata"]["namespace"]
        try:
            engine.may_write()
            await engine.api.create(resources.EVENTS, namespace, manifest, metadata_only=True)
        except errors.AlreadyExists:
            return
        except errors.ApiError as error:
            job = manifest["regarding"]["name"]
            _LOG.warning("Event %s of %s: %s", manifest["reason"], job, error)


def _manifest(
    body: jobs.Body,
    event: decision.Event,
    same: str,
    instance: str,
    now: datetime.datetime,
) -> client.Object:
    metadata, status = body["metadata"], body.get("status") or {}
    restarts = sum((status.get("restarts") or {}).values())
    moment = f"{metadata['uid']} {status.get('attempt', 0)} {restarts}"
    text = "\n".join((moment, event.reason, same or event.message))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    note = event.message
    return {
        "apiVersion": resources.EVENTS.api_version,
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{digest}", "namespace": metadata["namespace"]},
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": names.CONTROLLER,
        "reportingInstance": instance[:128],
        "action": "Reconcile",
        "reason": event.reason,
        "type": event.type.value,
        "note": note if len(note) <= NOTE_LIMIT else f"{note[: NOTE_LIMIT - 3]}...",
        "regarding": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
    }
