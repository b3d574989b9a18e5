"""The result of a rehearsal as text: for a terminal, and for programs."""

import dataclasses
import json
from collections.abc import Iterator

from rich import table as rich_table

from tfparallel.rehearse import recovery
from tfparallel.rehearse.rehearsal import Prediction, Rehearsal
from tfparallel.terminal import job_tables
from tfparallel_trainer.contract import weight_comparison

_NOTHING = "-"


def build_timeline_table(rehearsal: Rehearsal) -> rich_table.Table:
    """Return what happened in the disturbed run."""
    table = job_tables.plain_table("SECONDS", "WHAT HAPPENED")
    for entry in recovery.build_timeline(rehearsal.disturbed):
        table.add_row(f"{round(entry.seconds, 2) + 0.0:.2f}", entry.text)  # never -0.00
    return table


def build_recovery_table(rehearsal: Rehearsal) -> rich_table.Table:
    """Return what each fault cost."""
    columns = ("FAULT", "NOTICED", "RESTARTED", "RESUMED", "NEW STEP", "STEPS LOST")
    table = job_tables.plain_table(*columns)
    for recovered in rehearsal.recoveries:
        moments = (
            *(recovered.noticed, recovered.restarted),
            *(recovered.resumed, recovered.advanced),
        )
        lost = _NOTHING if recovered.lost_steps is None else str(recovered.lost_steps)
        table.add_row(str(recovered.fault), *map(_describe_seconds, moments), lost)
    return table


def _describe_seconds(seconds: float | None) -> str:
    return _NOTHING if seconds is None else f"{seconds:.2f} s"


def describe(rehearsal: Rehearsal) -> Iterator[str]:
    """Yield what the rehearsal found, a sentence each."""
    disturbed = rehearsal.disturbed
    for fault in rehearsal.missed_faults:
        yield f"{fault} did not happen: the job ended before, or restarted until its end."
    for slowdown in rehearsal.scenario.slowdowns:
        yield from _describe_slowdown(str(slowdown), rehearsal)
    if disturbed.problem:
        yield f"The job failed with the faults: {disturbed.problem} (logs: {disturbed.logs})"
    else:
        yield _describe_weights(rehearsal.weights)
    if rehearsal.prediction is not None:
        yield from _describe_prediction(rehearsal.prediction)
    elif rehearsal.hours_between_failures is not None:
        yield "The goodput is not predicted: the job saved no checkpoint, or did not restart."


def _describe_slowdown(slowdown: str, rehearsal: Rehearsal) -> Iterator[str]:
    before, after = rehearsal.undisturbed.step_seconds, rehearsal.disturbed.step_seconds
    if before and after:
        yield (
            f"{slowdown}: a step takes {after:.3g} s instead of {before:.3g} s, which is"
            f" {after / before:.3g} times as long."
        )


def _describe_weights(weights: weight_comparison.WeightComparison | None) -> str:
    if weights is None:
        return "The weights are not compared: a run kept no checkpoint."
    if weights.is_bit_equal:
        return f"The weights after step {weights.steps[1]} are bit-equal to the undisturbed run's."
    if weights.steps[0] != weights.steps[1]:
        return (
            f"The weights are those of step {weights.steps[1]}, and of step {weights.steps[0]} in"
            " the undisturbed run."
        )
    if weights.largest_difference is None:
        return f"{weights.differing} variables differ from the undisturbed run's without bound."
    return (
        f"{weights.differing} variables differ from the undisturbed run's, weights by at most"
        f" {weights.largest_difference:.3g}."
    )


def _describe_prediction(prediction: Prediction) -> Iterator[str]:
    costs = prediction.costs
    yield (
        f"Measured: a checkpoint stops training for {costs.pause:.3g} s and is written in"
        f" {costs.write:.3g} s; a restart takes {costs.restart:.3g} s."
    )
    yield (
        f"With a failure of the job every {prediction.hours_between_failures:.3g} h and a"
        f" checkpoint every {prediction.interval_steps} steps, the goodput is"
        f" {prediction.goodput:.2%}."
    )
    yield (
        f"The best interval is {prediction.best_interval_steps} steps"
        f" ({prediction.best_goodput:.2%}): --set"
        f" spec.trainer.checkpoint.everySteps={prediction.best_interval_steps}. The trainer saves"
        " at the end of each epoch, too."
    )


def build_document(rehearsal: Rehearsal) -> str:
    """Return the result as JSON."""
    document = {
        "job": rehearsal.job,
        "folder": str(rehearsal.folder),
        "undisturbed": _describe_run(rehearsal.undisturbed),
        "disturbed": _describe_run(rehearsal.disturbed),
        "recoveries": list(map(dataclasses.asdict, rehearsal.recoveries)),
        "missedFaults": list(map(str, rehearsal.missed_faults)),
        "slowdowns": list(map(dataclasses.asdict, rehearsal.scenario.slowdowns)),
        "timeline": list(map(dataclasses.asdict, recovery.build_timeline(rehearsal.disturbed))),
        "weights": None
        if rehearsal.weights is None
        else rehearsal.weights.model_dump(mode="json", by_alias=True),
        "prediction": None
        if rehearsal.prediction is None
        else dataclasses.asdict(rehearsal.prediction),
    }
    return json.dumps(_rename(document), indent=1)


def _describe_run(run: recovery.TrialRecords) -> dict[str, object]:
    return {
        "succeeded": not run.problem,
        "problem": run.problem,
        "seconds": run.seconds,
        "stepSeconds": run.step_seconds,
    }


def _rename(value: object) -> object:
    """Return a value with the names of its fields as JSON has them in this project."""
    if isinstance(value, dict):
        return {_camel(str(key)): _rename(inner) for key, inner in value.items()}
    return [_rename(inner) for inner in value] if isinstance(value, list) else value


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))
