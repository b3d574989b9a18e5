"""The arguments of `fit` as a value, and the data for training and validation that follow from
them."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.contract import job_file
from tfparallel_trainer.data import batch_division, batches, nest, order, passes
from tfparallel_trainer.keras_fit import array_inputs

CLAIM = "output-dir"
"""A placeholder for the name of a claim, which the folder of a script does not have."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The arguments of `fit`. Their names and meanings are Keras', except for the last ones."""

    model: Any
    x: Any
    y: Any
    batch_size: int | None
    epochs: int
    verbose: str | int
    callbacks: Any
    validation_split: float
    validation_data: Any
    shuffle: bool | str
    class_weight: Mapping[int, float] | None
    sample_weight: Any
    initial_epoch: int
    steps_per_epoch: int | None
    validation_steps: int | None
    validation_batch_size: int | None
    validation_freq: int | Sequence[int]
    seed: int
    output_dir: str | pathlib.Path | None
    save_every_steps: int | None
    save_every_minutes: int | None
    keep: int
    on_non_finite_loss: str
    max_staleness: int | None
    verify: str
    start_timeout_seconds: int
    step_timeout_seconds: int
    first_step_timeout_seconds: int | None
    evaluation_timeout_seconds: int | None

    def spec(self, batch_size: int) -> job_file.TrainerSpec:
        """As a job's spec.trainer would say it; a UserCodeError if a number is out of range."""
        saves = None
        if self.output_dir is not None:
            saves = {
                "claim": CLAIM,
                "everySteps": self.save_every_steps,
                "everyMinutes": self.save_every_minutes,
                "keep": self.keep,
            }
        try:
            return job_file.TrainerSpec.model_validate(
                {
                    "epochs": self.epochs,
                    "globalBatchSize": batch_size,
                    "seed": self.seed,
                    "checkpoint": saves,
                    "maxStaleness": self.max_staleness,
                    "onNonFiniteLoss": self.on_non_finite_loss,
                    "verify": self.verify,
                    "startTimeoutSeconds": self.start_timeout_seconds,
                    "stepTimeoutSeconds": self.step_timeout_seconds,
                    "firstStepTimeoutSeconds": self.first_step_timeout_seconds,
                    "evaluationTimeoutSeconds": self.evaluation_timeout_seconds,
                }
            )
        except ValueError as error:
            raise errors.UserCodeError(
                f"An argument of fit does not fit: {' '.join(str(error).split())[:400]}"
            ) from error


@dataclasses.dataclass(frozen=True, slots=True)
class Inputs:
    """The data of a run."""

    training: batch_division.Shardable
    validation: batch_division.Shardable | None
    batch_size: int
    """Examples in a step over all replicas."""
    steps: int | None
    """Batches in an epoch, where that is known."""
    facts: dict[str, int]
    """Values that must be the same in all processes."""


def build(arguments: Arguments) -> Inputs:
    """Make them of the arguments; what Keras' fit does not take is a UserCodeError."""
    if isinstance(arguments.shuffle, str):
        raise errors.UserCodeError(
            f"shuffle is {arguments.shuffle!r}: give True, which shuffles all examples, or False."
        )
    seed = arguments.seed if arguments.shuffle else None
    x_batches = batches.opened(arguments.x, "x", seed)
    return _of_arrays(arguments, seed) if x_batches is None else _of_batches(arguments, x_batches)


def _of_batches(arguments: Arguments, x_batches: batches.Batches) -> Inputs:
    for name in ("y", "sample_weight", "batch_size", "validation_split"):
        value = getattr(arguments, name)
        if not _absent(value):
            raise errors.UserCodeError(
                f"{name} is given, and x brings batches itself: leave {name} out; targets and "
                "weights are parts of each batch."
            )
    if arguments.output_dir is not None:
        _check_order(arguments)
    source = batches.BatchedDataset(
        x_batches,
        arguments.steps_per_epoch,
        arguments.class_weight,
        first_epoch=arguments.initial_epoch,
    )
    return Inputs(
        training=source,
        validation=_validation(arguments),
        batch_size=source.batch_size,
        steps=source.steps,
        facts={
            "the first batch of x (give shuffle a seed)": source.digest,
            "steps_per_epoch": arguments.steps_per_epoch or 0,
        },
    )


def _check_order(arguments: Arguments) -> None:
    """Refuse data whose order a restarted run could not continue."""
    if not isinstance(arguments.x, tf.data.Dataset):
        return
    if passes.shuffles_without_seed(arguments.x):
        raise errors.UserCodeError(
            "x shuffles without a seed, and output_dir is given: a run that is started again would "
            "use some examples twice and others never. Give shuffle a seed."
        )
    other = arguments.validation_data
    if isinstance(other, tf.data.Dataset) and passes.share_a_shuffle(arguments.x, other):
        raise errors.UserCodeError(
            "x and validation_data share a shuffle, so each evaluation changes the order of x: "
            "give shuffle reshuffle_each_iteration=False."
        )


def _of_arrays(arguments: Arguments, seed: int | None) -> Inputs:
    examples = array_inputs.examples(arguments.x, arguments.y, arguments.sample_weight, "x and y")
    validation = _validation(arguments)
    if validation is None and arguments.validation_split:
        examples, held_out = array_inputs.split(examples, arguments.validation_split)
        validation = _held_out(arguments, held_out)
    if arguments.class_weight is not None:
        examples = array_inputs.weighted(examples, arguments.class_weight)
    count = len(nest.leaves(examples)[0])
    batch_size = arguments.batch_size or _even(count, arguments.steps_per_epoch)
    whole = order.steps(count, batch_size)
    return Inputs(
        training=array_inputs.ArrayExamples(
            data=examples,
            batch_size=batch_size,
            seed=seed,
            steps=arguments.steps_per_epoch,
            first_epoch=arguments.initial_epoch,
        ),
        validation=validation,
        batch_size=batch_size,
        steps=min(arguments.steps_per_epoch or whole, whole),
        facts={"the number of examples": count, "steps_per_epoch": arguments.steps_per_epoch or 0},
    )


def _validation(arguments: Arguments) -> batch_division.Shardable | None:
    data = arguments.validation_data
    if data is None:
        return None
    validation_batches = batches.opened(data, "validation_data", None)
    if validation_batches is not None:
        return batches.BatchedDataset(
            validation_batches, arguments.validation_steps, None, restarts=True
        )
    is_tuple = isinstance(data, (tuple, list)) and len(data) in (1, 2, 3)
    if not is_tuple and not isinstance(data, np.ndarray | tf.Tensor | dict):
        raise errors.UserCodeError(
            f"validation_data is {type(data).__name__}: give x, (x, y) or (x, y, sample_weight)."
        )
    x, y, weight = nest.triple(data)
    return _held_out(arguments, array_inputs.examples(x, y, weight, "validation_data"))


def _held_out(arguments: Arguments, examples: Any) -> batch_division.Shardable:
    count, steps = len(nest.leaves(examples)[0]), arguments.validation_steps
    size = arguments.validation_batch_size or arguments.batch_size or _even(count, steps)
    if steps is not None:
        examples = nest.convert(lambda array: array[: steps * size], examples)
    return array_inputs.ArrayExamples(data=examples, batch_size=size)


def _even(count: int, steps: int | None) -> int:
    """Keras' default batch size."""
    return math.ceil(count / steps) if steps else array_inputs.DEFAULT_BATCH


def _absent(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not value)
