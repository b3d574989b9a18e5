"""Reconciles one job: observe, decide, apply. `workers` do it for every key of the queue."""

import dataclasses
import datetime
import functools
import logging
import math
import re
from collections.abc import Callable, Mapping

from tfparallel_operator.api import load, names
from tfparallel_operator.api_server import errors, resources
from tfparallel_operator.core import decide, decision, layout, observation
from tfparallel_operator.core.layout import Layout
from tfparallel_operator.core.life import dead_nodes, in_place, spec_validity
from tfparallel_operator.core.status import conditions
from tfparallel_operator.engine.observe import (
    flavors,
    host_port_allocator,
    jobs,
    pending_search,
    permissions,
    records,
    specs,
)
from tfparallel_operator.engine.observe.job_memory import JobMemories, Pause
from tfparallel_operator.engine.run import large_jobs
from tfparallel_operator.engine.telemetry import logs
from tfparallel_operator.engine.workqueue import queue
from tfparallel_operator.engine.write import apply, dependencies, recorder, writes

_LOG = logging.getLogger(__name__)

UNANSWERED_SECONDS = 30.0
"""Maximum pause after a write that failed in the API server, which says nothing about the job.

On a lossy connection, nearly every reconcile of a large job loses an answer, so the pause must stay
short.
"""

_MAY_PASS = names.Reason.SERVER_UNAVAILABLE
"""A reason that is reported only if the next attempt fails too."""

BLOCKED_SECONDS = 10.0
"""Maximum pause before a taken name is checked again. The operator also watches its deletion."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Readings:
    """Values that a reconcile reads before it decides. A second decision uses the same ones."""

    workloads: tuple[observation.Workload, ...]
    flavor_by_name: Mapping[str, observation.Flavor]
    """The flavors of these Workloads."""
    reasons: Mapping[str, str]
    """Why pods wait whose status does not say so, by uid."""

    def complete(self, children: observation.Children) -> observation.Children:
        """Return children with these Workloads and reasons."""
        pods = pending_search.explain(children.pods, self.reasons)
        return dataclasses.replace(children, pods=pods, workloads=self.workloads)


class Reconciler:
    """Reconciles jobs."""

    def __init__(self, engine: dependencies.Dependencies, memories: JobMemories) -> None:
        self._engine = engine
        self._api = engine.api
        self._jobs = engine.jobs
        self._children = engine.children
        self._timers = engine.timers
        self._clock = engine.clock
        self._events = recorder.Recorder(engine)
        self._applier = apply.Applier(engine, self._events)
        self._flavors = flavors.Flavors(engine.api, engine.children)
        self._host_ports = host_port_allocator.HostPortAllocator(
            engine.jobs, engine.settings.host_ports_of_namespace
        )
        self._memories = memories
        self._pending_search = pending_search.PendingSearch(
            engine.api, engine.timers, engine.clock, memories
        )
        self._specs = specs.Specs(engine.api, memories)
        self._restrictions = permissions.Permissions(engine.api, engine.settings, memories)
        self._rewinds = engine.rewinds()
        self._decider = large_jobs.Decider()

    async def reconcile(self, key: queue.Key) -> writes.ApplyResult:
        """Reconcile one job, and schedule the retry of refused pods.

        Raises:
            errors.ApiError: a write was not done; what it was for is decided again.
            load.StatusError: the job's status cannot be read, so nothing is decided on it.
        """
        self._forget_lost_history()
        body = self._jobs.get(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            self._pending_search.give_up(key, self._memories.forget(key).searches)
            await self._force_left_over(key, body, uid="")
            return writes.DONE  # The garbage collector deletes its children.
        await self._force_left_over(key, body, body["metadata"]["uid"])
        try:
            return await self._carry_out(body)
        except errors.Conflict:
            await self._read(key, body["metadata"]["uid"])
            raise
        except errors.NotFound:
            await self._read(key, body["metadata"]["uid"])
            if self._jobs.get(key) is not None:
                raise
            return writes.DONE
        except (errors.Refused, errors.WebhookFailed) as error:
            await self._report(self._jobs.get(key) or body, error)
            raise
        except load.StatusError as error:
            message = f"the operator leaves the job alone, because it cannot read its {error}"
            event = decision.warning(names.Reason.STATUS_UNREADABLE, message)
            await self._events.record({"metadata": body["metadata"]}, event)
            raise

    def _forget_lost_history(self) -> None:
        """Forget facts about generations that a restore of etcd has undone, because they come
        again."""
        if self._rewinds != (rewinds := self._engine.rewinds()):
            self._rewinds = rewinds
            self._memories.forget_generations()

    async def _force_left_over(self, key: queue.Key, body: jobs.Body | None, uid: str) -> None:
        """Delete by force the pods that deleted jobs of a name have left on dead nodes.

        The garbage collector only asks the node to end them.

        Args:
            key: the name.
            body: the job that has it; None: there is none.
            uid: of the job whose pods are not meant; empty: it is being deleted.
        """
        pods = self._children.pods.of_others(key, uid)
        deletions, look_again_at = dead_nodes.force_deletions(pods, self._clock())
        if look_again_at is not None:
            self._timers.set(key, look_again_at)
        try:
            await self._applier.delete(key.namespace, deletions, body)
        except errors.ApiError as error:
            _LOG.warning("pods of a deleted job: %s; again in %s", error, dead_nodes.RETRY)

    async def _carry_out(self, body: jobs.Body) -> writes.ApplyResult:
        key = jobs.key_of(body)
        children = self._children.for_job(records.as_owner(body))
        reasons = await self._pending_search.find_reasons(key, children.pods)
        flavor_by_name = await self._flavors.read(children.workloads)
        observed = _Readings(children.workloads, flavor_by_name, reasons)
        decided = await self._decide(body, None, observed)
        outcome = await self._apply(body, decided)
        memory, refusal = self._memories.recall(key), outcome.refusal
        if refusal is None:
            if decided.creations:
                memory.pause = None
            if memory.pause is None:
                memory.backoff.reset()
            return outcome
        newest = self._jobs.get(key) or body
        decided = await self._decide(newest, refusal, observed)
        if conditions.finished(decided.status):
            return await self._apply(newest, decided)
        if outcome.is_blocked:  # When it is gone, the watch says so.
            self._timers.after(key, memory.backoff.count_failure(BLOCKED_SECONDS))
            await self._apply(newest, decided)
            return outcome
        is_persistent = memory.pause is not None or refusal.reason is not _MAY_PASS
        self._postpone(newest, refusal, outcome.retry_after)
        if is_persistent:
            await self._apply(newest, decided)
        return outcome

    def _postpone(
        self, body: jobs.Body, refusal: observation.Refusal, retry_after: float | None
    ) -> None:
        """Pause the job's creations. Everything else continues."""
        key = jobs.key_of(body)
        memory = self._memories.recall(key)
        longest = UNANSWERED_SECONDS if refusal.reason is _MAY_PASS else math.inf
        pause = max(memory.backoff.count_failure(longest), retry_after or 0.0)
        until = self._clock() + datetime.timedelta(seconds=pause)
        memory.pause = Pause(until, body["metadata"]["generation"])
        self._timers.set(key, until)

    def _find_pause(self, body: jobs.Body) -> datetime.datetime | None:
        """Return until when the creations of a job pause. An edited spec is tried at once."""
        pause = self._memories.recall(jobs.key_of(body)).pause
        is_over = pause is None or self._clock() >= pause.until
        is_edited = pause is not None and pause.generation != body["metadata"]["generation"]
        return None if pause is None or is_over or is_edited else pause.until

    async def _apply(self, body: jobs.Body, decided: decision.Decision) -> writes.ApplyResult:
        with logs.about(attempt=decided.status.attempt):
            return await self._applier.apply(body, decided)

    async def _decide(
        self,
        body: jobs.Body,
        refusal: observation.Refusal | None,
        observed: _Readings,
    ) -> decision.Decision:
        owner, settings = records.as_owner(body), self._engine.settings
        children = self._children.for_job(owner)
        job, ports_left = await self._lay_out(body, owner, has_pods=bool(children.pods))
        paused_until = self._find_pause(body)
        environment = observation.Environment(
            host_ports_left=ports_left,
            flavors=observed.flavor_by_name,
            restriction=await self._restrictions.find(job),
            may_create=paused_until is None,
            refusal=refusal,
        )

        def bind() -> Callable[[], decision.Decision]:
            # A large job may have waited for its turn.
            newest = self._with_agents(job, observed.complete(self._children.for_job(owner)))
            now = self._clock().replace(microsecond=0)
            return functools.partial(decide.decide, job, newest, environment, now, settings)

        decided = await self._decider.compute(bind, large_jobs.find_size(job, children))
        if decided.status.host_ports is None:
            self._host_ports.release(owner.uid)
        if decided.wake_at is not None:
            # Set before anything is written: a deadline holds also while writes are refused.
            self._timers.set(jobs.key_of(body), decided.wake_at)
        if paused_until is not None:
            self._timers.set(jobs.key_of(body), paused_until)
            return dataclasses.replace(decided, creations=())
        return decided

    def _with_agents(
        self, job: Layout | observation.InvalidJob, children: observation.Children
    ) -> observation.Children:
        """Return children with what the agents of pods say."""
        reports = self._children.run_ends.of_pods(children.pods)
        if not reports:
            return children
        status = job.status if isinstance(job, observation.InvalidJob) else job.job.status
        pods = in_place.observe(children.pods, status, reports)
        return dataclasses.replace(children, pods=pods)

    async def _lay_out(
        self, body: jobs.Body, owner: records.Owner, *, has_pods: bool
    ) -> tuple[Layout | observation.InvalidJob, int | None]:
        """Build the layout of a job with its ports of nodes, and return how many it may have if it
        lacks some."""
        port, settings = None, self._engine.settings
        try:
            requested = layout.build(self._specs.newest(body))
            port = self._find_port(requested, owner)
            requested = requested.with_host_ports(port)
            problem = spec_validity.find_problem_of_edit(requested, settings)
            if problem is not None:
                raise load.SpecError(problem)
        except load.StatusError:
            raise
        except load.SpecError as error:
            return await self._specs.invalid(body, error, has_pods=has_pods, first_port=port), None
        return requested, self._host_ports.left(owner) if requested.lacks_ports else None

    def _find_port(self, requested: Layout, owner: records.Owner) -> int | None:
        """Reserve ports of nodes for a job; None: it needs none, or has to wait for some.

        Raises:
            load.SpecError: it has some, and those that follow are not free.
        """
        if not requested.lacks_ports:
            return None
        needed, ports = requested.needed_ports, requested.host_ports
        port = self._host_ports.find(owner, needed)
        if port is None and ports is not None:
            raise load.SpecError(
                f"spec.tfReplicaSpecs.Worker.replicas: the job needs {needed} ports in a row,"
                f" and only the {ports.count} that it has are free. Give a smaller"
                " number, or delete the job and apply it again"
            )
        return port

    async def _read(self, key: queue.Key, uid: str) -> None:
        """Read a job again, because its newest version is needed before the watch receives it."""
        try:
            self._jobs.update(await self._api.get(resources.JOBS.path(key.namespace, key.name)))
        except errors.NotFound:
            self._jobs.forget(key, uid)

    async def _report(self, body: jobs.Body, error: errors.ApiError) -> None:
        """Report on the job why it makes no progress, because a person has to change rights or
        policies."""
        message = f"refused by the API server, trying again: {error}"
        event = decision.warning(names.Reason.REPLICAS_PENDING, message)
        # Its numbers change from try to try: which pod, how much of a quota is used.
        await self._events.record(body, event, dedup_key=re.sub(r"\d+", "#", message))
