"""Carries a decision out, in the order that `core.decision` documents."""

import asyncio
import collections
import dataclasses
import functools
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from tfparallel_operator.api import gate, names
from tfparallel_operator.api_server import client, errors, resources
from tfparallel_operator.core import decision, observation
from tfparallel_operator.core.life import obstacles
from tfparallel_operator.engine.observe import jobs, records
from tfparallel_operator.engine.write import context, merge, priorities, recorder, refusals

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

MAX_WRITES = 16
"""Writes for one job at the same time."""

MAX_PROBES = 64
"""Names that are looked up at once, when one is taken."""

_MAY_STILL_WRITE = (
    ". If the node has lost its network alone, the command may still run and write files: make it"
    " compare TFPARALLEL_ATTEMPT"
)
"""What a command of a person's own does not fence, unlike the shipped trainer."""

_KNOWN_BY_METADATA = frozenset(
    {
        resources.PODS,
        resources.SERVICES,
        resources.CONFIG_MAPS,
        resources.NETWORK_POLICIES,
        resources.CLAIMS,
    }
)
"""Of these, what the API server adds next to their metadata is of no use at their creation."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """How far a decision was carried out."""

    refusal: observation.Refusal | None = None
    """Why the API server refused a create; those after it were not tried."""
    retry_after: float | None = None
    """Seconds after which the API server wants to be asked again."""
    holders: tuple[obstacles.Holder, ...] = ()
    """Objects that have names which the job needs."""
    started: bool = False
    """Whether all was created, and the status is left to the next look."""

    @property
    def is_blocked(self) -> bool:
        """Whether the job waits for an object that is being deleted."""
        passes = (names.Reason.NAME_HELD, names.Reason.DELETION_STUCK)
        return self.refusal is not None and self.refusal.reason in passes


DONE = Outcome()
STARTED = Outcome(started=True)


class Applier:
    """Writes decisions, and asks before every write whether this operator may."""

    def __init__(self, engine: context.Context, events: recorder.Recorder) -> None:
        self._engine = engine
        self._api = engine.api
        self._children = engine.children
        self._may_write = engine.may_write
        self._events = events

    async def apply(self, body: jobs.Body, decided: decision.Decision) -> Outcome:
        """Carry a decision out, as far as the API server takes it.

        Raises:
            errors.Conflict: the job has changed since it was read.
            errors.ApiError: anything else; a later decision leads to the rest of the same steps.
        """
        if decided.starts:
            self._check_newest(body)
            try:
                outcome = await self._create(decided.creations)
            except errors.Conflict:
                raise
            except errors.ApiError:
                await self._write_status(body, decided)  # Its deadlines count from now on.
                raise
            if outcome == DONE:
                return STARTED
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
        if not decided.starts:
            outcome = await self._create(decided.creations)
        if decided.delete_job and outcome == DONE:
            await self._delete_job(written or body)
        return outcome

    def _check_newest(self, body: jobs.Body) -> None:
        """Notice what the condition of a status would: that the job has changed meanwhile."""
        newest = self._engine.jobs.get(jobs.key_of(body))
        version = "resourceVersion"
        if newest is None or newest["metadata"][version] != body["metadata"][version]:
            raise errors.Conflict("the job has changed since it was read")

    async def _write_status(self, body: jobs.Body, decided: decision.Decision) -> jobs.Body | None:
        old = {k: v for k, v in (body.get("status") or {}).items() if k not in gate.REPORTED}
        new = decided.status.model_dump(mode="json", by_alias=True, exclude_none=True)
        new = {key: value for key, value in new.items() if key not in gate.REPORTED}
        change = merge.difference(old, new)
        if not change:
            return None
        metadata = body["metadata"]
        path = resources.JOBS.path(metadata["namespace"], metadata["name"], "status")
        condition = {"resourceVersion": metadata["resourceVersion"]}
        self._may_write()
        answer = await self._api.patch(path, {"metadata": condition, "status": change})
        self._engine.jobs.answered(answer)
        self._engine.metrics.status_written(self._engine.work.age(jobs.key_of(body)))
        _LOG.info("%s, %s ready", new.get("state"), new.get("ready") or "0")
        return answer

    async def _say_without_status(
        self, body: jobs.Body, decided: decision.Decision, error: errors.ApiError
    ) -> None:
        """Say by Events what a status should say that the API server does not take."""
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
            namespace: theirs.
            deletions: of these objects.
            body: the job that has their job's name now; None: there is none.

        Raises:
            errors.ApiError: one of them was not deleted.
        """
        delete = functools.partial(self._delete_one, namespace, body)
        _worst(await _at_once(delete, deletions))

    async def _delete_one(
        self, namespace: str, body: jobs.Body | None, deletion: decision.Deletion
    ) -> Outcome:
        force = deletion.force_from is not None
        if deletion.force_from and await self._lives(deletion.force_from):
            _LOG.warning(
                "pod %s: its node %s is ready and does not end it",
                deletion.name,
                deletion.force_from,
            )
            return DONE
        name, uid = deletion.name, deletion.uid
        resource = self._children.served(resources.BY_TYPE[deletion.type])
        self._may_write()
        try:
            await self._api.delete(resource, namespace, name, uid, force=force)
        except (errors.NotFound, errors.Conflict):
            return DONE  # It is gone, or another pod has the name by now.
        if force and await self._is_gone(resource.path(namespace, name), uid):
            message = f"{name} was deleted by force: its node did not end it"
            _LOG.warning("pod %s", message)
            if body is None:  # An Event needs a job.
                return DONE
            if "trainer" not in (body.get("spec") or {}):
                message = f"{message}{_MAY_STILL_WRITE}"
            reason = names.Reason.POD_FORCED
            await self._events.record(body, decision.warning(reason, message))
        return DONE

    async def _is_gone(self, path: str, uid: str) -> bool:
        """Whether an object is gone: a finalizer keeps it also when it is deleted by force."""
        try:
            return bool((await self._api.get(path))["metadata"]["uid"] != uid)
        except errors.NotFound:
            return True

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
            manifest = await self._api.get(resources.NODES.path(name=node))
        except (errors.NotFound, errors.Refused):
            return False
        return records.ready(manifest)

    async def _create(self, manifests: Sequence[decision.Manifest]) -> Outcome:
        waves = _waves(manifests)
        for number, wave in enumerate(waves):
            outcomes = await _at_once(self._create_one, wave)
            outcome = _worst(outcomes)
            if outcome.holders:
                return await self._name_holders(outcome, itertools.chain(*waves[number:]))
            if outcome != DONE:
                return outcome
        return DONE

    async def _name_holders(
        self, first: Outcome, manifests: Iterable[decision.Manifest]
    ) -> Outcome:
        """Say which objects have the names that a job needs next."""
        now = self._engine.clock()
        refusal = obstacles.explain(first.holders, now)
        if refusal.reason is names.Reason.NAME_CONFLICT:
            probed = list(itertools.islice(manifests, MAX_PROBES))
            outcomes = await _at_once(self._probe, probed, on_all=True)
            holders = [
                holder
                for outcome in outcomes
                if isinstance(outcome, Outcome)
                for holder in outcome.holders
            ]
            refusal = obstacles.explain(holders or first.holders, now)
        return Outcome(refusal)

    async def _probe(self, manifest: decision.Manifest) -> Outcome:
        """Look whether an object has a name that the job needs; create nothing."""
        resource = resources.BY_TYPE[manifest["apiVersion"], manifest["kind"]]
        try:
            return await self._find_holder(self._children.served(resource), manifest)
        except errors.NotFound:
            return DONE

    async def _create_one(self, manifest: decision.Manifest) -> Outcome:
        resource = resources.BY_TYPE[manifest["apiVersion"], manifest["kind"]]
        namespace = manifest["metadata"]["namespace"]
        served = self._children.served(resource)
        manifest = {**manifest, "apiVersion": served.api_version}
        self._may_write()
        try:
            if resource == resources.WORKLOADS:
                manifest = await priorities.with_priority(self._api, manifest)
            is_brief = resource in _KNOWN_BY_METADATA
            created = await self._api.create(served, namespace, manifest, metadata_only=is_brief)
        except errors.AlreadyExists:
            return await self._find_holder(served, manifest)
        except errors.Invalid as error:
            if resource == resources.WORKLOADS:  # Its labels may be corrected, unlike a spec.
                return Outcome(refusals.refused(str(error)), error.retry_after)
            return Outcome(refusals.invalid(manifest, error), error.retry_after)
        except errors.NotFound as error:
            if resource not in (*resources.POD_GROUPS, resources.WORKLOADS):
                raise
            return Outcome(refusals.not_installed(manifest), error.retry_after)
        except errors.Refused as error:
            return Outcome(refusals.refused(str(error)), error.retry_after)
        except errors.Unavailable as error:
            return Outcome(refusals.unavailable(manifest, error), error.retry_after)
        if is_brief:
            created = {**manifest, "metadata": created["metadata"]}
        labels = created["metadata"].get("labels") or {}
        if labels.get(names.LABEL_MANAGED_BY) != names.MANAGED_BY:  # A policy has changed it.
            holder = refusals.hold(created, manifest, obstacles.Whose.UNLABELED)
            return Outcome(holders=(holder,))
        return self._learn(resource, created)

    def _learn(self, resource: resources.Resource, answer: client.Object) -> Outcome:
        if resource != resources.CLAIMS:  # Nobody follows claims: see `core.pods.claims`.
            self._children.learn(resource, answer)
        return DONE

    async def _find_holder(
        self, resource: resources.Resource, manifest: decision.Manifest
    ) -> Outcome:
        """Take the object that has a name, if it is the one that the job needs; else say whose."""
        metadata = manifest["metadata"]
        existing = await self._api.get(resource.path(metadata["namespace"], metadata["name"]))
        if resource == resources.CLAIMS:
            return _check_claim(existing, manifest)
        whose = _find_whose(existing, manifest)
        if whose is not None:
            return Outcome(holders=(refusals.hold(existing, manifest, whose),))
        self._learn(resource, existing)
        if (other := records.installation(existing)) not in ("", records.installation(manifest)):
            raise errors.Conflict(f"installation {other} of the operator acts on the job")
        return DONE

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
    """Order creations: what pods need, then the pods, and of many pods first one of each role.

    A template that is wrong is so found before the other thousand pods exist.
    """
    others = [manifest for manifest in manifests if manifest["kind"] != "Pod"]
    pods = [manifest for manifest in manifests if manifest["kind"] == "Pod"]
    if len(pods) <= MAX_WRITES:
        return [others, pods]
    first: dict[str, decision.Manifest] = {}
    rest = [
        pod
        for pod in pods
        if first.setdefault(pod["metadata"]["labels"][names.LABEL_ROLE], pod) is not pod
    ]
    return [others, list(first.values()), rest]


async def _at_once(
    do: Callable[[T], Awaitable[Outcome]], items: Sequence[T], *, on_all: bool = False
) -> list[Outcome | Exception]:
    """Do something for every item, a bounded number at a time; return what became of each.

    After the first that is not done, nothing more starts, unless it is to be done `on_all`.
    """
    remaining = collections.deque(items)
    outcomes: list[Outcome | Exception] = []

    async def attempt(item: T) -> Outcome | Exception:
        try:
            return await do(item)
        except Exception as error:  # The worst of all is raised in the end.
            return error

    async def work() -> None:
        while remaining:
            outcomes.append(await attempt(remaining.popleft()))
            if outcomes[-1] != DONE and not on_all:
                remaining.clear()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(MAX_WRITES, len(items))):
            group.create_task(work())
    return outcomes


def _worst(outcomes: Sequence[Outcome | Exception]) -> Outcome:
    """Return or raise what matters most: a bug, a refusal for good or for now, an error, a name."""
    worst = min(outcomes, key=_rank, default=DONE)
    if not isinstance(worst, Exception):
        return worst
    try:
        raise worst
    finally:
        # An error whose traceback names it would keep all manifests of a large job until a search.
        del worst, outcomes


def _rank(outcome: Outcome | Exception) -> int:
    if isinstance(outcome, Exception):
        return 3 if isinstance(outcome, errors.ApiError) else 0
    if outcome.refusal is not None:
        return 1 if outcome.refusal.final else 2
    return 4 if outcome.holders else 5


def _check_claim(existing: client.Object, manifest: decision.Manifest) -> Outcome:
    """Take the claim of a name, if this job or an earlier one of its name has made it."""
    holder = refusals.hold(existing, manifest, obstacles.Whose.EARLIER)
    if records.deleting(existing):
        return Outcome(holders=(holder,))
    labels = existing["metadata"].get("labels") or {}
    if labels.get(names.LABEL_JOB) != manifest["metadata"]["labels"][names.LABEL_JOB]:
        return Outcome(refusals.foreign_claim(manifest))
    owner = records.owner(existing)
    expected = manifest["metadata"].get("ownerReferences") or ()
    is_of_other = owner and owner.uid not in [reference["uid"] for reference in expected]
    return Outcome(holders=(holder,)) if is_of_other else DONE


def _find_whose(existing: client.Object, manifest: decision.Manifest) -> obstacles.Whose | None:
    """Return whose an object is that has the name of one that a job needs; None: the job's own."""
    job, owner = manifest["metadata"]["ownerReferences"][0], records.owner(existing)
    if records.tfjob(existing) == job["name"]:
        return obstacles.Whose.TFJOB
    if owner is None or owner.name != job["name"]:
        return obstacles.Whose.OTHER
    labels = existing["metadata"].get("labels") or {}
    if labels.get(names.LABEL_MANAGED_BY) != names.MANAGED_BY:
        return obstacles.Whose.UNLABELED
    if owner.uid != job["uid"] or not _same_attempt(existing, manifest):
        return obstacles.Whose.EARLIER
    return obstacles.Whose.EARLIER if records.deleting(existing) else None


def _same_attempt(existing: client.Object, manifest: decision.Manifest) -> bool:
    needed = manifest["metadata"]["labels"]
    labels = existing["metadata"].get("labels") or {}
    return all(
        labels.get(label) == needed.get(label)
        for label in (names.LABEL_ATTEMPT, names.LABEL_REPLICA_ATTEMPT)
    )
