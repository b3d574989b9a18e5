"""Carries a decision out, in the order that `core.decision` documents."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tfparallel_operator.api import names
from tfparallel_operator.api_server import client, errors, resources
from tfparallel_operator.core import decision, observation
from tfparallel_operator.engine import (
    children,
    jobs,
    kueue,
    merge,
    observe,
    queue,
    recorder,
    refusals,
)

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

MAX_WRITES = 16
"""Writes for one job at the same time."""

_TOO_MANY = 429

NOT_OURS = ("progress", "placement")
"""The fields of a status that another field manager owns."""


class Blocked(errors.ApiError):
    """A name is still held by an object that is on its way out."""


class NotWanted(Exception):  # noqa: N818
    """A create was refused for good; `refusal` says it to `decide`."""

    def __init__(self, refusal: observation.Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class Postponed(Exception):  # noqa: N818
    """A create was refused for now; `refusal` says it to `decide`."""

    def __init__(self, refusal: observation.Refusal, retry_after: float | None) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.retry_after = retry_after


def always() -> None:
    """Allow every write."""


def untold(_: queue.Key) -> None:
    """Tell nobody of a status that was written."""


class Applier:
    """Writes what was decided; errors end the writing and go to the caller.

    Before every write it asks whether it still may: `may_write` raises an error otherwise. It tells
    `wrote` of every status whose write was answered.
    """

    def __init__(
        self,
        api: client.Client,
        known: jobs.Jobs,
        found: children.Children,
        events: recorder.Recorder,
        may_write: Callable[[], None] = always,
        wrote: Callable[[queue.Key], None] = untold,
    ) -> None:
        self._api = api
        self._jobs = known
        self._children = found
        self._events = events
        self._may_write = may_write
        self._wrote = wrote

    async def apply(self, body: jobs.Body, decided: decision.Decision) -> None:
        """Carry a decision out.

        Raises:
            NotWanted: a create was refused for good.
            Postponed: a create was refused for now; those after it were not tried.
            errors.Conflict: the job has changed since it was read.
            errors.ApiError: anything else; a later decision leads to the rest of the same steps.
        """
        written = await self._write_status(body, decided)
        if written is not None:
            for event in decided.events:
                await self._events.record(written, event)
        await self._delete(body, decided.deletions)
        await self._change(body, decided.changes)
        await self._create(decided.creations)
        if decided.delete_job:
            await self._delete_job(written or body)

    async def _write_status(self, body: jobs.Body, decided: decision.Decision) -> jobs.Body | None:
        old = {k: v for k, v in (body.get("status") or {}).items() if k not in NOT_OURS}
        new = decided.status.model_dump(mode="json", by_alias=True, exclude_none=True)
        new = {key: value for key, value in new.items() if key not in NOT_OURS}
        change = merge.difference(old, new)
        if not change:
            return None
        metadata = body["metadata"]
        path = resources.JOBS.path(metadata["namespace"], metadata["name"], "status")
        condition = {"resourceVersion": metadata["resourceVersion"]}
        self._may_write()
        answer = await self._api.patch(path, {"metadata": condition, "status": change})
        self._jobs.answered(answer)
        self._wrote(jobs.key_of(body))
        _LOG.info("%s, %s ready", new.get("state"), new.get("ready") or "0")
        return answer

    async def _delete(self, body: jobs.Body, deletions: Sequence[decision.Deletion]) -> None:
        namespace = body["metadata"]["namespace"]

        async def delete(deletion: decision.Deletion) -> None:
            force = deletion.force_from is not None
            if deletion.force_from and await self._lives(deletion.force_from):
                _LOG.warning(
                    "pod %s: its node %s is ready and does not end it",
                    deletion.name,
                    deletion.force_from,
                )
                return
            name, uid = deletion.name, deletion.uid
            resource = self._children.served(resources.BY_TYPE[deletion.type])
            self._may_write()
            try:
                await self._api.delete(resource, namespace, name, uid, force=force)
            except (errors.NotFound, errors.Conflict):
                return  # It is gone, or another pod has the name by now.
            if force:
                message = f"{name} was deleted by force: its node did not end it"
                reason = names.Reason.POD_FORCED
                event = decision.Event(decision.EventType.WARNING, reason, message)
                await self._events.record(body, event)

        _raise_worst(await _at_once(delete, deletions))

    async def _change(self, body: jobs.Body, changes: Sequence[decision.Change]) -> None:
        for change in changes:
            resource = resources.BY_TYPE[change.type]
            namespace = body["metadata"]["namespace"]
            served = self._children.served(resource)
            path = served.path(namespace, change.name, change.subresource)
            condition = {"uid": change.uid, "resourceVersion": change.version}
            known = {key: value for key, value in condition.items() if value is not None}
            fields = {**change.fields, "metadata": {**change.fields.get("metadata", {}), **known}}
            self._may_write()
            self._children.learn(resource, await self._api.patch(path, fields))

    async def _lives(self, node: str) -> bool:
        """Whether a node says that it is ready; one that we may not look at does not."""
        try:
            found = await self._api.get(resources.NODES.path(name=node))
        except (errors.NotFound, errors.Refused):
            return False
        return observe.ready(found)

    async def _create(self, manifests: Sequence[decision.Manifest]) -> None:
        for wave in _waves(manifests):
            _raise_worst(await _at_once(self._create_one, wave))

    async def _create_one(self, manifest: decision.Manifest) -> None:
        resource = resources.BY_TYPE[manifest["apiVersion"], manifest["kind"]]
        namespace = manifest["metadata"]["namespace"]
        served = self._children.served(resource)
        manifest = {**manifest, "apiVersion": served.api_version}
        self._may_write()
        try:
            if resource == resources.WORKLOADS:
                manifest = await kueue.prioritised(self._api, manifest)
            created = await self._api.create(served, namespace, manifest)
        except errors.AlreadyExists:
            created = await self._compare(served, manifest)
        except errors.Invalid as error:
            if resource == resources.WORKLOADS:  # Its labels may be corrected, unlike a spec.
                raise Postponed(refusals.refused(str(error)), error.retry_after) from error
            raise NotWanted(refusals.invalid(manifest, str(error))) from error
        except errors.NotFound as error:
            if resource not in (*resources.POD_GROUPS, resources.WORKLOADS):
                raise
            raise Postponed(refusals.not_installed(manifest), error.retry_after) from error
        except errors.Refused as error:
            raise Postponed(refusals.refused(str(error)), error.retry_after) from error
        except errors.Unavailable as error:
            if error.status != _TOO_MANY:
                raise
            refusal = observation.Refusal(names.Reason.TOO_MANY_REQUESTS, str(error), final=False)
            raise Postponed(refusal, error.retry_after) from error
        if resource != resources.CLAIMS:  # Nobody follows claims: see `core.claims`.
            self._children.learn(resource, created)

    async def _compare(
        self, resource: resources.Resource, manifest: decision.Manifest
    ) -> client.Object:
        """Return the object that has the name already, if it is the one that we want."""
        metadata = manifest["metadata"]
        name, kind = metadata["name"], manifest["kind"]
        found = await self._api.get(resource.path(metadata["namespace"], name))
        if observe.deleting(found):
            raise Blocked(f"{kind} {name} is being deleted")
        if resource == resources.CLAIMS:
            return _shared(found, manifest)
        job, owner = metadata["ownerReferences"][0], observe.owner(found)
        if observe.tfjob(found) == job["name"]:
            message = f"{kind} {name} belongs to the TFJob of this name: delete the TFJob"
            refusal = observation.Refusal(names.Reason.NAME_CONFLICT, message, final=False)
            raise Postponed(refusal, None)
        if owner is None or owner.name != job["name"]:
            message = (
                f"{kind} {name} exists and does not belong to this job: delete it, or give the "
                "job another name"
            )
            raise NotWanted(observation.Refusal(names.Reason.NAME_CONFLICT, message))
        if owner.uid != job["uid"]:
            raise Blocked(f"{kind} {name} of an earlier job of this name is not gone yet")
        if not _same_attempt(found, manifest):
            raise Blocked(f"{kind} {name} of an earlier attempt is not gone yet")
        return found

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


def _waves(manifests: Sequence[decision.Manifest]) -> list[list[decision.Manifest]]:
    """Order creations: what pods need, then a pod of each role, then the other pods.

    A template that is wrong is so found before the other thousand pods exist.
    """
    others = [manifest for manifest in manifests if manifest["kind"] != "Pod"]
    first: dict[str, decision.Manifest] = {}
    rest: list[decision.Manifest] = []
    for manifest in manifests:
        if manifest["kind"] == "Pod":
            role = manifest["metadata"]["labels"][names.LABEL_ROLE]
            if first.setdefault(role, manifest) is not manifest:
                rest.append(manifest)
    return [others, list(first.values()), rest]


async def _at_once(do: Callable[[T], Awaitable[None]], items: Sequence[T]) -> list[BaseException]:
    """Do something for every item, a bounded number at a time; return what went wrong.

    Nothing more is begun when one of them fails.
    """
    slots = asyncio.Semaphore(MAX_WRITES)
    failed = asyncio.Event()

    async def one(item: T) -> None:
        async with slots:
            if not failed.is_set():
                try:
                    await do(item)
                except BaseException:
                    failed.set()
                    raise

    outcomes = await asyncio.gather(*map(one, items), return_exceptions=True)
    return [outcome for outcome in outcomes if outcome is not None]


def _raise_worst(problems: Sequence[BaseException]) -> None:
    """Raise what matters most: a bug, a refusal for good or for now, an error, a blocked name."""
    if problems:
        raise min(problems, key=_rank)


def _rank(problem: BaseException) -> int:
    order = (NotWanted, Postponed, Blocked, errors.ApiError)
    ranks = {NotWanted: 1, Postponed: 2, errors.ApiError: 3, Blocked: 4}
    return next((ranks[kind] for kind in order if isinstance(problem, kind)), 0)


def _shared(found: client.Object, manifest: decision.Manifest) -> client.Object:
    """Return the claim of a name, if this job or an earlier one of its name has made it."""
    name, labels = manifest["metadata"]["name"], found["metadata"].get("labels") or {}
    if labels.get(names.LABEL_JOB) != manifest["metadata"]["labels"][names.LABEL_JOB]:
        raise Postponed(refusals.foreign_claim(manifest), None)
    owner = observe.owner(found)
    expected = manifest["metadata"].get("ownerReferences") or ()
    if owner is not None and owner.uid not in [reference["uid"] for reference in expected]:
        raise Blocked(f"PersistentVolumeClaim {name} goes with an earlier job of this name")
    return found


def _same_attempt(found: client.Object, manifest: decision.Manifest) -> bool:
    wanted = manifest["metadata"]["labels"]
    labels = found["metadata"].get("labels") or {}
    return all(
        labels.get(label) == wanted.get(label)
        for label in (names.LABEL_ATTEMPT, names.LABEL_REPLICA_ATTEMPT)
    )
