"""Writes the Events of a job. They are for people, so a failed write is only logged."""

import datetime
import hashlib
import logging

from tfparallel_operator.api import names
from tfparallel_operator.api_server import client, errors, resources
from tfparallel_operator.core import decision
from tfparallel_operator.engine.observe import jobs
from tfparallel_operator.engine.write import dependencies
from tfparallel_trainer.contract import plain_text

_LOG = logging.getLogger(__name__)

MESSAGE_BYTES = 1024
"""Maximum size of an Event's message, which the API server counts in bytes."""


class Recorder:
    """Records Events, each once between two restarts of a job.

    The name of an Event is a hash of its content. So the API server refuses a repeat, even after a
    restart of the operator.
    """

    def __init__(self, engine: dependencies.Dependencies) -> None:
        self._engine = engine

    async def record(self, body: jobs.Body, event: decision.JobEvent, dedup_key: str = "") -> bool:
        """Write one Event about a job; return whether it is new.

        Args:
            body: the job.
            event: what has happened.
            dedup_key: Events of a job with the same reason and key are written once; empty: the
                message is the key.
        """
        namespace, engine = body["metadata"]["namespace"], self._engine
        manifest = _manifest(body, event, dedup_key, engine.instance, engine.clock())
        engine.may_write()
        try:
            await engine.api.create(resources.CORE_EVENTS, namespace, manifest, metadata_only=True)
        except errors.AlreadyExists:
            return False
        except errors.ApiError as error:
            _LOG.warning("Event %s of %s: %s", event.reason, body["metadata"]["name"], error)
            return False
        return True


def _manifest(
    body: jobs.Body,
    event: decision.JobEvent,
    dedup_key: str,
    instance: str,
    now: datetime.datetime,
) -> client.Object:
    metadata, status = body["metadata"], body.get("status") or {}
    restarts = sum((status.get("restarts") or {}).values())
    moment = f"{metadata['uid']} {status.get('attempt', 0)} {restarts}"
    text = "\n".join((moment, event.reason, dedup_key or event.message))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    second = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    manifest: client.Object = {
        "apiVersion": resources.CORE_EVENTS.api_version,
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{digest}", "namespace": metadata["namespace"]},
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        # `kubectl describe` sorts by these, and shows nothing else in order.
        "firstTimestamp": second,
        "lastTimestamp": second,
        "count": 1,
        "reportingComponent": names.CONTROLLER,
        "reportingInstance": instance[:128],
        "action": event.action.value,
        "reason": event.reason,
        "type": event.type.value,
        "message": plain_text.shorten(event.message, MESSAGE_BYTES),
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
    }
    if event.pod:
        manifest["related"] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": metadata["namespace"],
            "name": event.pod,
        }
    return manifest
