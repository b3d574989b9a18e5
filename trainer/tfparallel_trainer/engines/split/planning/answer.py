"""Answers a question for a plan: builds the user's model without weights, and plans it."""

import dataclasses
import pathlib

from tfparallel_trainer import user
from tfparallel_trainer.contract import plan
from tfparallel_trainer.engines.split.model import skeleton
from tfparallel_trainer.engines.split.planning import (
    calibrate,
    choose,
    hardware,
    links,
    search_space,
    subjects,
)


def answer(question: plan.Question) -> plan.Plan:
    """Plan the model of a question.

    Raises:
        UserCodeError: the module raises, or its model cannot be split.
        BadConfigurationError: what is asked for is impossible, or does not fit the devices.
    """
    module = user.load(pathlib.Path(question.folder), question.module)
    model = skeleton.build(module, question.seed)
    recorded = skeleton.recorded(module, model)
    # Not before: Keras cannot clone a compiled model without weights.
    skeleton.compile_model(module, model)
    cluster = hardware.Cluster(
        processes=question.processes,
        devices=question.devices,
        device=hardware.Device(memory=question.memory),
    )
    measured = None
    if question.calibrate:
        microbatch = max(1, question.batch // (cluster.size * (question.microbatches or 1)))
        measured = calibrate.measure(recorded, microbatch, question.length)
        cluster = _measured(cluster, calibrate.update(model.optimizer, recorded))
    subject = subjects.of(recorded, model.optimizer, cluster, question.length, measured)
    constraints = search_space.Constraints(
        mesh=question.mesh,
        microbatches=question.microbatches,
        order=question.schedule,
        batch=question.batch,
    )
    return choose.plan_for(subject, constraints)


def _measured(cluster: hardware.Cluster, update: hardware.Update) -> hardware.Cluster:
    """A cluster whose links and updates are as fast as on this machine."""
    device = dataclasses.replace(cluster.device, update=update)
    cluster = dataclasses.replace(cluster, device=device)
    return links.measure(cluster) if cluster.size > 1 else cluster
