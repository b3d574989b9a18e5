"""Trains random jobs as processes, and says how each ended."""

import dataclasses
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from testing.trainer import launch, trainer_processes, weights
from testing.trainer.random_models import module_source, outcomes, plain, spec
from tfparallel_trainer.contract import exits, job_file, outputs

TOLERANCE = weights.TOLERANCE
NORMALISED_TOLERANCE = 1e-8
_MODULE = "model.py"
_LIMIT_SECONDS = 600.0
_STALL_SECONDS = 300
_AMPLIFIED = 100.0
"""A difference within this many times what mixed batches differ by is rounding."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """What Keras' own fit gives for a model."""

    weights: Sequence[Any]
    metrics: dict[str, float]


def judge_all(
    jobs: Sequence[spec.Job], folder: pathlib.Path, verify: job_file.Verify = job_file.Verify.AUTO
) -> list[outcomes.JobVerdict]:
    """Train jobs that share a model, in a folder of their own; returns how each ended.

    `verify` is trainer.verify.
    """
    model = jobs[0].model
    source = folder / "source"
    source.mkdir(parents=True)
    (source / _MODULE).write_text(module_source.write(model), encoding="utf-8")
    try:
        reference, failure = train_plainly(model.training, source, plain.PROMISED)
        if reference is None:
            return [outcomes.JobVerdict(outcomes.Ending.INVALID, failure) for _ in jobs]
        if not all(np.isfinite(array).all() for array in reference.weights if array.dtype != bool):
            return [
                outcomes.JobVerdict(outcomes.Ending.INVALID, "Keras' weights are not finite.")
                for _ in jobs
            ]
        verdicts = []
        for number, job in enumerate(jobs):
            job_folder = folder / str(number)
            environments = _environments(job, source, job_folder, verify)
            verdicts.append(_judge(job, source, job_folder, environments, reference))
        return verdicts
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_to_failure(job: spec.Job) -> tuple[outcomes.Ending, str]:
    """Run a job alone, in processes."""
    with tempfile.TemporaryDirectory(prefix="random-models-") as folder:
        [verdict] = judge_all([job], pathlib.Path(folder) / "job")
    # A sentence on metrics contains their numbers: what counts is that it was written.
    return verdict.ending, outcomes.generalise(verdict.detail).partition(":")[0]


def train_plainly(
    training: spec.Training, source: pathlib.Path, order: str
) -> tuple[Reference | None, str]:
    """Train with Keras in a process; returns the result, or None and the error."""
    output = source.parent / f"{order}.npz"
    arguments = (
        *("-m", "testing.trainer.random_models.plain", str(source / _MODULE), str(output)),
        *(str(value) for value in (training.seed, training.batch, training.epochs)),
        order,
    )
    with launch.Group(source.parent / order, [{}], arguments, trainer_processes.forked) as group:
        try:
            code = group.processes[0].wait(_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            return None, "Keras' fit did not end."
        if code:
            return None, _last_line(group.result(0).errors)
    with np.load(output) as arrays:
        return Reference(
            [arrays[name] for name in arrays.files if name.startswith("weight/")],
            {
                name.removeprefix("metric/"): float(arrays[name])
                for name in arrays.files
                if name.startswith("metric/")
            },
        ), ""


def _judge(
    job: spec.Job,
    source: pathlib.Path,
    folder: pathlib.Path,
    environments: list[dict[str, str]],
    reference: Reference,
) -> outcomes.JobVerdict:
    with launch.Group(
        folder / "logs", environments, launch.TRAINER, trainer_processes.forked
    ) as group:
        try:
            # Servers and their workers wait for a chief that the trainer has refused.
            group.processes[0].wait(_LIMIT_SECONDS)
            is_chief_alone = job.layout.strategy == "ParameterServer"
            ended = [group.result(0)] if is_chief_alone else group.wait(_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            return outcomes.JobVerdict(outcomes.Ending.HUNG, "The processes did not end.")
    codes = {process.code for process in ended}
    if codes == {exits.Exit.DONE}:
        return _compare(job, source, folder, reference)
    for code, ending in _ENDINGS.items():
        if code in codes:
            return outcomes.JobVerdict(ending, _error(ended, {code}))
    refusals = codes & {exits.Exit.USER_ERROR, exits.Exit.BAD_CONFIGURATION}
    if not refusals:
        return outcomes.JobVerdict(
            outcomes.Ending.CRASHED, f"{sorted(map(str, codes))}: {_error(ended, codes)}"
        )
    sentence = _error(ended, refusals)
    if not sentence or _RAISED.search(sentence):
        return outcomes.JobVerdict(outcomes.Ending.UNCLEAR, sentence or _last_line(ended[0].errors))
    if _has_stepped(folder):
        ending = (
            outcomes.Ending.REFUSED_LATER
            if job.model.training.callbacks
            else outcomes.Ending.UNCLEAR
        )
        return outcomes.JobVerdict(ending, sentence)
    return outcomes.JobVerdict(outcomes.Ending.REFUSED, sentence)


_ENDINGS = {
    exits.Exit.VERIFICATION_FAILED: outcomes.Ending.PROVEN,
    exits.Exit.STALLED: outcomes.Ending.HUNG,
}
_RAISED = re.compile(r"raised \w+|Traceback|\w+Error:")
"""What shows an exception of other software in a sentence."""


def _environments(
    job: spec.Job, source: pathlib.Path, folder: pathlib.Path, verify: job_file.Verify
) -> list[dict[str, str]]:
    training = job.model.training
    trainer: dict[str, object] = {
        "module": _MODULE,
        "epochs": training.epochs,
        "globalBatchSize": training.batch,
        "seed": training.seed,
        "checkpoint": {"claim": "c"},
        "stepTimeoutSeconds": _STALL_SECONDS,
        "verify": verify,
    }
    layout = job.layout
    if layout.strategy == "ParameterServer":
        return list(launch.with_servers(folder, source, trainer, workers=1).values())
    return launch.environments(
        folder,
        source,
        trainer,
        processes=layout.processes,
        devices=layout.devices,
        strategy=layout.strategy,
        mesh=None if layout.mesh is None else dict(layout.mesh),
    )


def _compare(
    job: spec.Job, source: pathlib.Path, folder: pathlib.Path, reference: Reference
) -> outcomes.JobVerdict:
    trained = _model_weights(weights.checkpoint(folder / "output"))
    difference = largest_difference(trained, reference.weights)
    tolerance = NORMALISED_TOLERANCE if job.model.has_batch_normalization else TOLERANCE
    if difference <= tolerance:
        metrics = launch.summary(folder).metrics
        wrong = [
            f"{name} is {metrics[name]!r} instead of {value!r}"
            for name, value in reference.metrics.items()
            # Keras' loss of one output is a mean over batches, ours over examples.
            if name in metrics
            and not name.endswith("_loss")
            and not abs(float(metrics[name]) - value) <= 1e-6 * max(1.0, abs(value))
        ]
        if wrong:
            return outcomes.JobVerdict(
                outcomes.Ending.DIFFERENT, f"Metrics: {', '.join(wrong)}", difference
            )
        return outcomes.JobVerdict(outcomes.Ending.EQUAL, "", difference)
    mixed, _ = train_plainly(job.model.training, source, plain.MIXED)
    if mixed is not None:
        rounding = largest_difference(mixed.weights, reference.weights)
        if difference <= _AMPLIFIED * rounding:
            return outcomes.JobVerdict(
                outcomes.Ending.ROUNDING, f"mixed batches: {rounding:.0e}", difference
            )
    return outcomes.JobVerdict(outcomes.Ending.DIFFERENT, "", difference)


def _model_weights(variables: Mapping[str, Any]) -> list[Any]:
    """Return the weights of a checkpoint in the model's order; stages save in theirs."""
    names = sorted(
        (name for name in variables if name.startswith("model/")),
        key=lambda name: [int(part) for part in re.split("[./]", name)[1:]],
    )
    return [variables[name] for name in names]


def largest_difference(trained: Sequence[Any], expected: Sequence[Any]) -> float:
    """Return the largest difference of a weight, infinite if the shapes differ."""
    if [array.shape for array in trained] != [array.shape for array in expected]:
        return float("inf")
    pairs = zip(trained, expected, strict=True)
    return max(
        (
            float(np.abs(array.astype("float64") - other.astype("float64")).max(initial=0.0))
            for array, other in pairs
        ),
        default=0.0,
    )


def _has_stepped(folder: pathlib.Path) -> bool:
    log = folder / "output" / outputs.TRAIN_LOG
    if not log.exists():
        return False
    lines = log.read_text(encoding="utf-8").splitlines()
    return any(json.loads(line)["event"] == "firstStep" for line in lines)


_ERROR = re.compile(r"^(?:\[[\w-]+\] )?error: (.*)$", re.MULTILINE)


def _error(ended: Sequence[launch.Ended], codes: set[int | None]) -> str:
    """Return the sentence of the first process that ended with one of some codes."""
    for process in ended:
        if process.code in codes:
            match = _ERROR.search(process.output + process.errors)
            if match:
                return match[1]
    return ""


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1][:400]
