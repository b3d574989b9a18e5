"""Makes a failing job small: leaves out what does not matter to the failure, piece by piece."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator

from testing.trainer.random_models import module_source, outcomes, spec

_TRIALS = 60


Failure = tuple[outcomes.Ending, str]
"""What must stay the same: how a job fails, and the sentence without names and numbers."""


def shrink(
    job: spec.Job,
    fail: Callable[[spec.Job], Failure],
    report: Callable[[str], object],
    trials: int = _TRIALS,
) -> spec.Job:
    """Return the smallest job found that fails in the same way; `fail` runs one.

    Raises:
        ValueError: the job does not fail.
    """
    expected = fail(job)
    if not expected[0].is_failure:
        raise ValueError(f"The job does not fail: {expected[0]} {expected[1]}")
    report(f"{expected[0]}: {expected[1]}")
    while trials:
        for candidate in candidates(job):
            trials -= 1
            if fail(candidate) == expected:
                job = candidate
                report(f"{sum(1 for _ in candidates(job))} pieces, {trials} trials left")
                break
            if not trials:
                return job
        else:
            return job
    return job


def candidates(job: spec.Job) -> Iterator[spec.Job]:
    """Give jobs that are a step smaller, the largest steps first."""
    for model in itertools.chain(
        _fewer_outputs(job.model),
        _fewer_nodes(job.model),
        _simpler_training(job.model),
        _simpler_outputs(job.model),
        _simpler_layers(job.model),
    ):
        yield dataclasses.replace(job, model=model)
    if job.layout.processes > 1 and job.layout.mesh is not None:
        layout = dataclasses.replace(job.layout, processes=1, devices=job.layout.processes)
        yield dataclasses.replace(job, layout=layout)


def _fewer_outputs(model: spec.Model) -> Iterator[spec.Model]:
    for output in model.outputs:
        remaining = tuple(other for other in model.outputs if other != output)
        if any(output.loss for output in remaining):
            yield _clean(dataclasses.replace(model, outputs=remaining))


def _clean(model: spec.Model) -> spec.Model:
    """Return the model without what its outputs do not need."""
    nodes = tuple(module_source.needed_nodes(model))
    read_names = {name for node in nodes for name in node.inputs}
    inputs = tuple(entry for entry in model.inputs if entry.name in read_names)
    return dataclasses.replace(model, inputs=inputs, nodes=nodes)


def _fewer_nodes(model: spec.Model) -> Iterator[spec.Model]:
    """Put an input of a node in the place of the node; Keras refuses what does not fit."""
    outputs = {output.node for output in model.outputs}
    shared = {node.shared for node in model.nodes}
    for node in reversed(model.nodes):
        if node.name in outputs or node.name in shared:
            continue
        for replacement in node.inputs:
            nodes = tuple(
                dataclasses.replace(
                    other,
                    inputs=tuple(replacement if it == node.name else it for it in other.inputs),
                )
                for other in model.nodes
                if other != node
            )
            yield _clean(dataclasses.replace(model, nodes=nodes))


def _simpler_training(model: spec.Model) -> Iterator[spec.Model]:
    training = model.training
    changes: list[dict[str, object]] = [
        {"callbacks": tuple(other for other in training.callbacks if other != callback)}
        for callback in training.callbacks
    ]
    if training.optimizer_calls:
        changes.append({"optimizer_calls": ()})
    plain = spec.Construction("keras.optimizers.SGD", {"learning_rate": "0.1"})
    if training.optimizer != plain:
        changes.append({"optimizer": plain, "optimizer_calls": ()})
    changes += [
        {"optimizer": training.optimizer.without(option)} for option in training.optimizer.options
    ]
    if "schedules" in training.optimizer.required.get("learning_rate", ""):
        optimizer = dataclasses.replace(
            training.optimizer, required={**training.optimizer.required, "learning_rate": "0.01"}
        )
        changes.append({"optimizer": optimizer})
    if training.epochs > 1:
        changes.append({"epochs": training.epochs - 1})
    if training.examples > training.batch:
        changes.append({"examples": training.batch})
    for change in changes:
        yield dataclasses.replace(
            model,
            training=dataclasses.replace(training, **change),  # type: ignore[arg-type]
        )


def _simpler_outputs(model: spec.Model) -> Iterator[spec.Model]:
    for index, output in enumerate(model.outputs):
        simpler: list[spec.Output] = []
        if output.sample_weight:
            simpler.append(dataclasses.replace(output, sample_weight=""))
        if output.metrics:
            simpler.append(dataclasses.replace(output, metrics=()))
        if output.loss_weight is not None:
            simpler.append(dataclasses.replace(output, loss_weight=None))
        if output.loss is not None:
            simpler += [
                dataclasses.replace(output, loss=output.loss.without(option))
                for option in output.loss.options
            ]
        for replacement in simpler:
            outputs = (*model.outputs[:index], replacement, *model.outputs[index + 1 :])
            yield dataclasses.replace(model, outputs=outputs)


def _simpler_layers(model: spec.Model) -> Iterator[spec.Model]:
    for index, node in enumerate(model.nodes):
        for option in node.layer.options:
            simpler = dataclasses.replace(node, layer=node.layer.without(option))
            nodes = (*model.nodes[:index], simpler, *model.nodes[index + 1 :])
            yield dataclasses.replace(model, nodes=nodes)
