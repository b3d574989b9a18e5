"""Answers a question for a plan: builds the user's model without weights, and plans it."""

import pathlib
from collections.abc import Sequence

from tfparallel_trainer import errors, user
from tfparallel_trainer.contract import plan
from tfparallel_trainer.split import recording, skeleton
from tfparallel_trainer.split.planning import (
    assigned,
    calibrate,
    choose,
    costs,
    devices,
    settings,
    slots,
    times,
)


def answer(question: plan.Question) -> plan.Plan:
    """Plan the model of a question.

    Raises:
        UserCodeError: the module raises, or its model cannot be split.
        BadConfigurationError: what is asked for is impossible, or does not fit the devices.
    """
    module = user.load(pathlib.Path(question.folder), question.module)
    model = skeleton.build(module, question.seed)
    recorded = recording.record(model)
    module.compile_model(model)  # not before: Keras cannot clone a compiled model without weights
    if not model.compiled or model.optimizer is None:
        raise errors.UserCodeError(
            f"{module.path}: there is no optimizer, whose slots take memory: define "
            "compile_model(model), which calls model.compile(optimizer=…, loss=…)."
        )
    held, fixed = slots.of(model.optimizer, recorded.variables)
    known = costs.of(recorded, held, fixed, question.length)
    cluster = devices.Cluster(
        processes=question.processes,
        devices=question.devices,
        device=devices.Device(memory=question.memory),
    )
    found: Sequence[times.NodeTime] = times.estimated(known, cluster.device)
    if question.calibrate:
        microbatch = max(1, question.batch // (cluster.size * (question.microbatches or 1)))
        found = calibrate.measure(recorded, microbatch, question.length)
    subject = choose.Subject(
        model=recorded,
        costs=known,
        times=found,
        cluster=cluster,
        ways_of=assigned.ways_of(recorded),
    )
    wanted = settings.Wanted(
        mesh=question.mesh,
        microbatches=question.microbatches,
        order=question.schedule,
        batch=question.batch,
    )
    return choose.plan_for(subject, wanted, question.calibrate)
