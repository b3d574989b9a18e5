"""Decides what to write next for a job, from the job and its children. Pure.

The phases run in order, and the first one that returns a decision wins.
"""

import dataclasses
import datetime
from collections.abc import Callable

from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import decision, installation, observation
from tfparallel_operator.core.context import DecisionContext
from tfparallel_operator.core.layout import Layout
from tfparallel_operator.core.life import (
    admission,
    cleanup,
    dead_nodes,
    deadlines,
    ending,
    host_ports,
    obstacles,
    rival_installations,
    scaling,
    spec_validity,
    start,
    training,
)
from tfparallel_operator.core.pods import claims, config
from tfparallel_operator.core.status import conditions, goodput, reported_conditions

Phase = Callable[[DecisionContext], decision.Decision | None]

PHASES: tuple[Phase, ...] = (
    cleanup.clean_up,
    ending.succeed,
    admission.fail_if_refused,
    admission.fail_if_unstartable,
    ending.suspend,
    admission.wait_for_permission,
    admission.wait_for_creation,
    admission.wait_for_quota,
    host_ports.wait,
    training.train,
)


def decide(
    job: Layout | observation.InvalidJob,
    children: observation.Children,
    environment: observation.Environment,
    now: datetime.datetime,
    settings: installation.InstallationSettings,
) -> decision.Decision:
    """Say what to write for a job at a time of whole seconds; see `DecisionContext`.

    Args:
        job: the job as its spec lays it out, with the ports that are set aside for it.
        environment: what the cluster lets it have.
    """
    if isinstance(job, observation.InvalidJob):
        status, generation = job.status, job.problem.generation
    else:
        status, generation = job.job.status, job.job.metadata.generation
    if children.config is not None and not rival_installations.may_act(
        children.config, settings, now
    ):
        return rival_installations.stand_back(status, children.config, settings, now)
    decided = _decide(job, children, environment, now, settings)
    stamp = conditions.Stamp(now, generation)
    return rival_installations.respond(decided, children.config, settings, stamp)


def _decide(
    requested: Layout | observation.InvalidJob,
    children: observation.Children,
    environment: observation.Environment,
    now: datetime.datetime,
    settings: installation.InstallationSettings,
) -> decision.Decision:
    problem = None
    if isinstance(requested, observation.InvalidJob):
        if requested.accepted is None:
            return spec_validity.decide_without_spec(requested, children, now)
        problem, requested = requested.problem, requested.accepted
    job = requested.job
    manager = job.spec.managed_by or job.spec.run_policy.managed_by
    if manager not in (None, names.CONTROLLER):
        return decision.Decision(job.status)
    generation = job.metadata.generation
    status, events = spec_validity.set_spec_condition(job.status, problem, now, generation)
    in_force = scaling.in_force(requested, children.pods)
    before = DecisionContext(requested, in_force, status, children, environment, now, settings)
    status, warnings = reported_conditions.update(_describe(before), before.stamp)
    described = dataclasses.replace(before, status=status)
    decided = next(filter(None, (phase(described) for phase in PHASES)))
    overdue, look_again_at = dead_nodes.force_deletions(children.pods, now)
    status = start.adopt_attempt(children.pods, decided.status)
    status = host_ports.give_back(described, status)
    status = goodput.advance(
        job.status,
        status.model_copy(update={"observed_generation": generation}),
        children.pods,
        observation.parse_time(job.metadata.creation_timestamp),
        now,
        reports_steps=job.spec.trainer is not None,
    )
    return dataclasses.replace(
        decided,
        status=status,
        events=(*events, *warnings, *decided.events),
        deletions=(*decided.deletions, *overdue),
        notices=_find_notices(children),
        changes=(*config.changes(requested, settings, children.config), *decided.changes),
        wake_at=deadlines.earliest(decided.wake_at, look_again_at),
    )


def _find_notices(children: observation.Children) -> tuple[decision.JobEvent, ...]:
    hidden = obstacles.find_hidden(children.pods)
    return (decision.warning(hidden.reason, obstacles.describe(hidden).message),) if hidden else ()


def _describe(context: DecisionContext) -> job_status.JobStatus:
    """Set the fields of the status that follow from the spec alone."""
    layout, trainer = context.layout, context.job.spec.trainer
    description = {
        "strategy": layout.strategy.value,
        "workers": layout.workers,
        "selector": scaling.selector(context.job),
        "host_ports": layout.host_ports,
    }
    status = context.status.model_copy(update=description)
    if trainer is None:
        return status
    checkpoint, kind = trainer.checkpoint, names.ConditionType.RESUMABLE
    if checkpoint is None:
        message = "a restart begins at step 0: set spec.trainer.checkpoint to keep state"
        return context.stamp.set(status, kind, False, names.Reason.NO_CHECKPOINT, message)
    claim, uri = checkpoint.claim, checkpoint.uri
    location = uri if claim is None else f"claim {claims.name(context.job, claim)}"
    message = f"restarts resume from the checkpoints in {location}"
    return context.stamp.set(status, kind, True, names.Reason.CHECKPOINT_CONFIGURED, message)
