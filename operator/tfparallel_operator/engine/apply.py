"""Carries a decision out, in the order that `core.decision` documents."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tfparallel_operator.api import names
from tfparallel_operator.core import decision, observation
from tfparallel_operator.engine import (
    children,
    client,
    errors,
    jobs,
    merge,
    observe,
    recorder,
    resources,
)

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

MAX_WRITES = 16
"""Writes for one job at the same time."""

NOT_OURS = ("progress", "placement")
"""The fields of a status that another field manager owns."""


class Blocked(errors.ApiError):
    """A name is still held by an object that is on its way out."""


class NotWanted(Exception):  # noqa: N818
    """A create was refused for good; `refusal` says it to `decide`."""

    def __init__(self, refusal: observation.Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class Applier:
    """Writes what was decided; errors end the writing and go to the caller."""

    def __init__(
        self,
        api: client.Client,
        known: jobs.Jobs,
        found: children.Children,
        events: recorder.Recorder,
    ) -> None:
        self._api = api
        self._jobs = known
        self._children = found
        self._events = events

    async def apply(self, body: jobs.Body, decided: decision.Decision) -> None:
        """Carry a decision out.

        Raises:
            NotWanted: a create was refused for good.
            errors.Conflict: the job has changed since it was read.
            errors.ApiError: anything else; a later decision leads to the rest of the same steps.
        """
        written = await self._write_status(body, decided)
        if written is not None:
            for event in decided.events:
                await self._events.record(written, event)
        await self._delete(body, decided.deletions)
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
        answer = await self._api.patch(path, {"metadata": condition, "status": change})
        self._jobs.answered(answer)
        _LOG.info("%s, %s ready", new.get("state"), new.get("ready") or "0")
        return answer

    async def _delete(self, body: jobs.Body, deletions: Sequence[decision.Deletion]) -> None:
        namespace = body["metadata"]["namespace"]

        async def delete(deletion: decision.Deletion) -> None:
            try:
                await self._api.delete(resources.PODS, namespace, deletion.name, deletion.uid)
            except (errors.NotFound, errors.Conflict):
                return  # It is gone, or another pod has the name by now.

        _raise_worst(await _at_once(delete, deletions))

    async def _create(self, manifests: Sequence[decision.Manifest]) -> None:
        for wave in _waves(manifests):
            _raise_worst(await _at_once(self._create_one, wave))

    async def _create_one(self, manifest: decision.Manifest) -> None:
        resource = resources.BY_KIND[manifest["kind"]]
        namespace = manifest["metadata"]["namespace"]
        try:
            created = await self._api.create(resource, namespace, manifest)
        except errors.AlreadyExists:
            created = await self._compare(resource, manifest)
        except errors.Invalid as error:
            raise NotWanted(_invalid(manifest, str(error))) from error
        self._children.learn(resource, created)

    async def _compare(
        self, resource: resources.Resource, manifest: decision.Manifest
    ) -> client.Object:
        """Return the object that has the name already, if it is the one that we want."""
        metadata = manifest["metadata"]
        name, kind = metadata["name"], manifest["kind"]
        found = await self._api.get(resource.path(metadata["namespace"], name))
        job, owner = metadata["ownerReferences"][0], observe.owner(found)
        if owner is None or owner.name != job["name"]:
            message = (
                f"{kind} {name} exists and does not belong to this job: delete it, or give the "
                "job another name"
            )
            raise NotWanted(observation.Refusal(names.Reason.NAME_CONFLICT, message))
        if owner.uid != job["uid"]:
            raise Blocked(f"{kind} {name} of an earlier job of this name is not gone yet")
        if observe.deleting(found) or not _same_attempt(found, manifest):
            raise Blocked(f"{kind} {name} of an earlier attempt is not gone yet")
        return found

    async def _delete_job(self, body: jobs.Body) -> None:
        metadata = body["metadata"]
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
    """Order creations: Service and ConfigMap, then a pod of each role, then the other pods.

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
    """Do something for every item, a bounded number at a time; return what went wrong."""
    slots = asyncio.Semaphore(MAX_WRITES)

    async def one(item: T) -> None:
        async with slots:
            await do(item)

    outcomes = await asyncio.gather(*map(one, items), return_exceptions=True)
    return [outcome for outcome in outcomes if outcome is not None]


def _raise_worst(problems: Sequence[BaseException]) -> None:
    """Raise the outcome that matters most: a bug, a refusal for good, an error, a blocked name."""
    if problems:
        raise min(problems, key=_rank)


def _rank(problem: BaseException) -> int:
    order = (errors.ApiError, NotWanted)
    if not isinstance(problem, order):
        return 0
    if isinstance(problem, NotWanted):
        return 1
    return 3 if isinstance(problem, Blocked) else 2


def _invalid(manifest: decision.Manifest, sentence: str) -> observation.Refusal:
    if manifest["kind"] != "Pod":
        return observation.Refusal(names.Reason.INVALID_SPEC, sentence)
    role = manifest["metadata"]["labels"][names.LABEL_ROLE]
    message = f"the API server refused the pod of the template of role {role}: {sentence}"
    return observation.Refusal(names.Reason.INVALID_TEMPLATE, message)


def _same_attempt(found: client.Object, manifest: decision.Manifest) -> bool:
    wanted = manifest["metadata"]["labels"]
    labels = found["metadata"].get("labels") or {}
    return all(
        labels.get(label) == wanted.get(label)
        for label in (names.LABEL_ATTEMPT, names.LABEL_REPLICA_ATTEMPT)
    )
