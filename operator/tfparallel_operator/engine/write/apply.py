"""Carries out a decision, in the order that `core.decision` documents."""

import functools
import logging
from collections.abc import Sequence
from typing import Any

from tfparallel_operator.api import gate, job_status, names
from tfparallel_operator.api_server import errors, resources
from tfparallel_operator.core import decision
from tfparallel_operator.engine.observe import jobs, owned, records
from tfparallel_operator.engine.write import creations, dependencies, merge, recorder, writes

_LOG = logging.getLogger(__name__)

_MAY_STILL_WRITE = (
    ". If the node has lost its network alone, the command may still run and write files: make it"
    " compare TFPARALLEL_ATTEMPT"
)
"""A warning for scripts: unlike the shipped trainer, they don't check the attempt."""


class Applier:
    """Writes decisions, after checking before each write that this operator may."""

    def __init__(self, engine: dependencies.Dependencies, events: recorder.Recorder) -> None:
        self._engine = engine
        self._api = engine.api
        self._children = engine.children
        self._may_write = engine.may_write
        self._events = events
        self._creator = creations.Creator(engine)

    async def apply(self, body: jobs.Body, decided: decision.Decision) -> writes.ApplyResult:
        """Carry out a decision, up to the first refusal.

        Raises:
            errors.Conflict: the job has changed since it was read.
            errors.ApiError: any other error; the next decision repeats the writes that are missing.
        """
        outcome = await self._create_first(body, decided) if decided.creates_first else None
        if outcome == writes.DONE:
            return writes.STARTED
        try:
            written = await self._write_status(body, decided)
        except (errors.Invalid, errors.Refused) as error:
            await self._say_without_status(body, decided, error)
            raise
        if written is not None:
            for event in decided.events:
                await self._events.record(written, event)
        for event in decided.notices:
            if await self._events.record(written or body, event):
                _LOG.warning("%s", event.message)
        await self.delete(body["metadata"]["namespace"], decided.deletions, body)
        await self._change(body, decided.changes)
        if outcome is None:
            outcome = await self._creator.create(decided.creations)
        if decided.delete_job and outcome == writes.DONE:
            await self._delete_job(written or body)
        return outcome

    async def _create_first(
        self, body: jobs.Body, decided: decision.Decision
    ) -> writes.ApplyResult:
        """Create the pods of a new job before its status, unless the job has changed.

        A status is written under the condition that the job hasn't changed. A creation can't be.
        """
        newest = self._engine.jobs.get(jobs.key_of(body))
        version = "resourceVersion"
        if newest is None or newest["metadata"][version] != body["metadata"][version]:
            raise errors.Conflict("the job has changed since it was read")
        try:
            return await self._creator.create(decided.creations)
        except errors.Conflict:
            raise
        except errors.ApiError:
            await self._write_status(body, decided)  # Its deadlines count from now on.
            raise

    async def _write_status(self, body: jobs.Body, decided: decision.Decision) -> jobs.Body | None:
        old = {k: v for k, v in (body.get("status") or {}).items() if k not in gate.REPORTED}
        new = _written(decided.status)
        change = merge.difference(old, new)
        if not change:
            return None
        metadata = body["metadata"]
        path = resources.JOBS.path(metadata["namespace"], metadata["name"], "status")
        condition = {"resourceVersion": metadata["resourceVersion"]}
        self._may_write()
        answer = await self._api.patch(path, {"metadata": condition, "status": change})
        self._engine.jobs.update(answer)
        self._engine.metrics.status_written(self._engine.work.age(jobs.key_of(body)))
        _LOG.info("%s, %s ready", new.get("state"), new.get("ready") or "0")
        return answer

    async def _say_without_status(
        self, body: jobs.Body, decided: decision.Decision, error: errors.ApiError
    ) -> None:
        """Report as Events what the status would say, because the API server refuses it."""
        for event in decided.events:
            await self._events.record(body, event)
        if isinstance(error, errors.Invalid):
            message = (
                f"the API server refuses the job's status: {error}. Delete the job, and apply it"
                " again with what the message asks for"
            )
            event = decision.warning(names.Reason.STATUS_REFUSED, message)
            await self._events.record(body, event)

    async def delete(
        self,
        namespace: str,
        deletions: Sequence[decision.Deletion],
        body: jobs.Body | None,
    ) -> None:
        """Delete objects of a job.

        Args:
            namespace: of the objects.
            deletions: the deletions.
            body: the job that now has the name of their job; None: none has.

        Raises:
            errors.ApiError: one of them was not deleted.
        """
        delete = functools.partial(self._delete_one, namespace, body)
        writes.find_worst(await writes.run_at_once(delete, deletions))

    async def _delete_one(
        self, namespace: str, body: jobs.Body | None, deletion: decision.Deletion
    ) -> writes.ApplyResult:
        force = deletion.force_from is not None
        if deletion.force_from and await self._lives(deletion.force_from):
            _LOG.warning(
                "pod %s: its node %s is ready and does not end it",
                deletion.name,
                deletion.force_from,
            )
            return writes.DONE
        name, uid = deletion.name, deletion.uid
        resource = self._children.served(owned.BY_TYPE[deletion.type])
        self._may_write()
        try:
            await self._api.delete(resource, namespace, name, uid, force=force)
        except (errors.NotFound, errors.Conflict):
            return writes.DONE  # It is gone, or another pod has its name.
        if force and await self._is_gone(resource.path(namespace, name), uid):
            message = f"{name} was deleted by force: its node did not end it"
            _LOG.warning("pod %s", message)
            if body is None:  # An Event needs a job.
                return writes.DONE
            if "trainer" not in (body.get("spec") or {}):
                message = f"{message}{_MAY_STILL_WRITE}"
            reason = names.Reason.POD_FORCED
            await self._events.record(body, decision.warning(reason, message))
        return writes.DONE

    async def _is_gone(self, path: str, uid: str) -> bool:
        """Whether an object is gone. A finalizer keeps it even after a forced deletion."""
        try:
            return bool((await self._api.get(path))["metadata"]["uid"] != uid)
        except errors.NotFound:
            return True

    async def _change(self, body: jobs.Body, changes: Sequence[decision.Change]) -> None:
        for change in changes:
            resource = owned.BY_TYPE[change.type]
            namespace = body["metadata"]["namespace"]
            served = self._children.served(resource)
            path = served.path(namespace, change.name, change.subresource)
            condition = {"uid": change.uid, "resourceVersion": change.version}
            conditions = {key: value for key, value in condition.items() if value is not None}
            fields = {
                **change.fields,
                "metadata": {**change.fields.get("metadata", {}), **conditions},
            }
            self._may_write()
            self._children.learn(resource, await self._api.patch(path, fields))

    async def _lives(self, node: str) -> bool:
        """Whether a node is ready. False also if the operator may not read nodes."""
        try:
            manifest = await self._api.get(resources.NODES.path(name=node))
        except (errors.NotFound, errors.Refused):
            return False
        return records.ready(manifest)

    async def _delete_job(self, body: jobs.Body) -> None:
        metadata = body["metadata"]
        self._may_write()
        try:
            await self._api.delete(
                resources.JOBS,
                metadata["namespace"],
                metadata["name"],
                metadata["uid"],
                metadata["resourceVersion"],
            )
        except errors.NotFound:
            return


def _written(status: job_status.JobStatus) -> dict[str, Any]:
    """Return the fields of a status that decisions own, without empty ones."""
    fields = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    roles = {role: _without_empty(counts) for role, counts in fields["replicas"].items()}
    decided = {key: value for key, value in fields.items() if key not in gate.REPORTED}
    return _without_empty({**decided, "replicas": roles})


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value not in ("", {})}
