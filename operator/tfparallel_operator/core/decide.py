"""The one decision: from a job and its children to what to write next. Pure.

The phases are tried in their order, and the first that has something to say decides.
"""

import dataclasses
import datetime
from collections.abc import Callable

from tfparallel_operator.api import job_status, names, types
from tfparallel_operator.core import context, decision, installation, layout, observation
from tfparallel_operator.core.life import (
    admission,
    cleanup,
    deadlines,
    ending,
    scaling,
    spec_validity,
    training,
)
from tfparallel_operator.core.pods import claims, config

Phase = Callable[[context.DecisionContext], decision.Decision | None]

PHASES: tuple[Phase, ...] = (
    cleanup.clean_up,
    ending.succeed,
    admission.fail_if_refused,
    admission.fail_if_gang_is_impossible,
    ending.suspend,
    admission.wait_for_creation,
    admission.fail_if_too_large,
    admission.wait_for_quota,
    admission.wait_for_ports,
    training.train,
)


def decide(
    job: types.TFParallelJob | observation.InvalidJob,
    children: observation.Children,
    now: datetime.datetime,
    settings: installation.Settings,
    refusal: observation.Refusal | None = None,
) -> decision.Decision:
    """Say what to write for a job, given all that is known.

    Args:
        job: the job with its last written status, or what is wrong with its newest spec.
        children: what was observed of its children.
        now: the time, with time zone; whole seconds.
        settings: what the installation decides for every job.
        refusal: a create that the API server has refused since the last decision.
    """
    problem = None
    if isinstance(job, observation.InvalidJob):
        if job.accepted is None:
            return spec_validity.decide_without_spec(job, children, now)
        problem, job = job.problem, job.accepted
    manager = job.spec.managed_by or job.spec.run_policy.managed_by
    if manager not in (None, names.CONTROLLER):
        return decision.Decision(job.status)
    generation = job.metadata.generation
    status, events = spec_validity.set_spec_condition(job.status, problem, now, generation)
    requested = layout.build(job, first_port=children.host_port)
    in_force = scaling.in_force(requested, children.pods)
    decision_context = context.DecisionContext(
        layout=in_force,
        requested=requested,
        status=status,
        children=children,
        now=now,
        settings=settings,
        refusal=refusal,
    )
    description = _describe(decision_context)
    decision_context = dataclasses.replace(decision_context, status=description)
    decided = next(filter(None, (phase(decision_context) for phase in PHASES)))
    overdue, look_again_at = cleanup.force_deletions(children.pods, now)
    return dataclasses.replace(
        decided,
        events=(*events, *decided.events),
        deletions=(*decided.deletions, *overdue),
        changes=(*config.changes(requested, settings, children.config), *decided.changes),
        wake_at=deadlines.earliest(decided.wake_at, look_again_at),
    )


def _describe(context: context.DecisionContext) -> job_status.JobStatus:
    """Bring what follows from the spec alone into the status."""
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
    if trainer.checkpoint is not None:
        reason = names.Reason.CHECKPOINT_CONFIGURED
        claim, uri = trainer.checkpoint.claim, trainer.checkpoint.uri
        place = uri if claim is None else f"claim {claims.name(context.job, claim)}"
        message = f"a restart goes on from the checkpoints on {place}"
    else:
        reason = names.Reason.NO_CHECKPOINT
        message = "a restart begins at step 0: set spec.trainer.checkpoint to keep state"
    has_checkpoint = trainer.checkpoint is not None
    return context.stamp.set(status, names.Condition.RESUMABLE, has_checkpoint, reason, message)
