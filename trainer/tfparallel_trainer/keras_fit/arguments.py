"""The arguments of `fit` as a value, and what follows from them."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tfparallel_trainer import errors
from tfparallel_trainer.contract import job_file

CLAIM = "output_dir"
"""Stands for the name of a claim, which a script's folder has not."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What `fit` was called with; the names and meanings are Keras' except for the last ones."""

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
    start_timeout_seconds: int
    step_timeout_seconds: int

    def spec(self, batch_size: int) -> job_file.TrainerSpec:
        """As a job's spec.trainer would say it.

        Raises:
            UserCodeError: a number is out of its range.
        """
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
                    "startTimeoutSeconds": self.start_timeout_seconds,
                    "stepTimeoutSeconds": self.step_timeout_seconds,
                }
            )
        except ValueError as error:
            raise errors.UserCodeError(
                f"An argument of fit does not fit: {' '.join(str(error).split())[:400]}"
            ) from error
