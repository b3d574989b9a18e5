"""Runs for the tests of reports: one that lost a worker, and one of a split model."""

import dataclasses
import datetime
import json
from collections.abc import Iterator, Sequence
from typing import Any

from tfparallel import models, train_log
from tfparallel.report import run_records
from tfparallel_operator.api import job_status, names
from tfparallel_trainer.contract import job_file, outputs, plan, progress, verification

BEGIN = datetime.datetime(2026, 11, 1, 12, tzinfo=datetime.UTC)

SECONDS_WITH_A_LOSS = {
    "scheduling": 2,
    "starting": 5,
    "training": 9,
    "inputWait": 1,
    "evaluating": 1,
    "checkpointing": 2,
    "restarting": 8,
    "recomputing": 2,
}
"""What the operator recorded of `with_a_loss`."""


def at(seconds: float) -> datetime.datetime:
    """Return a moment after the begin of the run."""
    return BEGIN + datetime.timedelta(seconds=seconds)


def line(seconds: float, event: str, step: int, /, **fields: Any) -> str:
    """Return a line of the train log."""
    return json.dumps({"time": at(seconds).isoformat(), "event": event, "step": step, **fields})


def event(
    seconds: float,
    reason: names.Reason,
    message: str = "",
    action: names.EventAction = names.EventAction.RECONCILE,
    pod: str = "",
) -> models.Event:
    """Return an event of the job."""
    kind = "Warning" if reason is names.Reason.REPLICA_FAILED else "Normal"
    return models.Event(
        time=at(seconds),
        type=kind,
        reason=reason.value,
        object=f"{names.SINGULAR}/digits",
        message=message,
        action=action.value,
        pod=pod,
    )


def pod_event(seconds: float, reason: str, pod: str, message: str = "") -> models.Event:
    """Return an event of a pod, as scheduler and kubelet write it: in whole seconds."""
    return models.Event(at(int(seconds)), "Normal", reason, f"pod/{pod}", message)


def attempt(start: float, step: int, count: int, number: int = 1) -> Iterator[str]:
    """Yield the lines of a process that needs 5 s to its first step, then 1 s for each ten.

    It waits for input a fifth of the time, and saves a checkpoint every twenty steps in 0.5 s.
    """
    versions = {"TensorFlow": "2.21.0", "Keras": "3.14.0", "Python": "3.11.2"}
    facts = {"attempt": number, "seconds": 5.0, "versions": versions}
    yield line(start + 5, outputs.TrainEvent.FIRST_STEP, step + 1, **facts)
    for tens in range(1, count + 1):
        reached, moment = step + 10 * tens, start + 5 + tens
        metrics = {"loss": 3.0 / reached, "accuracy": 1 - 1.0 / reached, "input_wait": 0.2}
        staleness = {"0": 7, "1": 2, "3": 1}
        yield line(
            moment,
            outputs.TrainEvent.TRAIN,
            reached,
            epoch=reached // 40,
            examplesPerSecond=320.0 + tens,
            memoryBytes=(700 + 5 * tens) * 2**20,
            staleness=staleness,
            metrics=metrics,
        )
        if reached % 20 == 0:
            yield line(moment + 0.5, outputs.TrainEvent.CHECKPOINT, reached, seconds=0.5)


def job(
    state: names.State = names.State.SUCCEEDED, ended: float | None = 60, **status: Any
) -> models.Job:
    """Return a job of two workers that started at the beginning."""
    container = {
        "name": "tensorflow",
        "resources": {"limits": {"memory": "1Gi"}},
        "env": [{"name": "TOKEN", "value": "hidden-value"}],
    }
    worker = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
    trainer = {"module": "digits", "steps": 90, "globalBatchSize": 32}
    spec = {"tfReplicaSpecs": {"Worker": worker}, "trainer": trainer}
    fields = {"strategy": "MultiWorkerMirrored", "attempt": 1, **status}
    completion = None if ended is None else at(ended)
    return models.Job(
        name="digits",
        namespace="default",
        uid="",
        created=BEGIN,
        status=job_status.JobStatus(state=state, completion_time=completion, **fields),
        manifest={
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": "digits"},
            "spec": spec,
        },
    )


def pod(replica: str, number: int, start: float, end: float, outcome: str) -> run_records.PodRun:
    """Return a process of a replica on a node of its own."""
    node = f"node-{replica[-1]}"
    return run_records.PodRun(
        replica, f"digits-{replica}", number, node, at(start), at(end), outcome
    )


def parsed(lines: Sequence[str]) -> Sequence[train_log.Record]:
    """Return records from the lines of a log."""
    return train_log.parse("".join(f"{line}\n" for line in lines), outputs.TRAIN_LOG)


def with_a_loss() -> run_records.RunRecords:
    """Return a run that lost a worker after 50 steps, of which 40 were saved, and ended after 90.

    Its processes start after 2 s and, 3 s after the loss at 13 s, after 16 s.
    """
    lines = [*attempt(2, 0, 5), *attempt(16, 40, 5, 2)]
    lines.append(line(27, outputs.TrainEvent.EVALUATION, 90, epoch=2, metrics={"loss": 0.04}))
    lines.append(line(28, outputs.TrainEvent.DONE, 90))
    failed = "digits-worker-1 exited with code 137 (ended by signal 9); all replicas run again"
    spent = job_status.GoodputStatus(since=at(30), seconds=SECONDS_WITH_A_LOSS)
    return run_records.RunRecords(
        job=job(ended=30, restarts=job_status.Restarts(failure=1), goodput=spent),
        source="in namespace default",
        now=at(40),
        events=[
            event(0, names.Reason.JOB_STARTED, "attempt 1 with 2 replicas"),
            event(2.1, names.Reason.REPLICAS_RUNNING),
            event(
                13,
                names.Reason.REPLICA_FAILED,
                failed,
                names.EventAction.RESTART_ALL,
                "digits-worker-1",
            ),
            event(16.1, names.Reason.REPLICAS_RUNNING),
            event(30, names.Reason.WORKERS_SUCCEEDED),
        ],
        pods=[
            pod("worker-0", 1, 2, 13.5, "Error, exit code 75"),
            pod("worker-1", 1, 2, 13, "Error, exit code 137"),
            pod("worker-0", 2, 16, 29, "Completed"),
            pod("worker-1", 2, 16, 29, "Completed"),
        ],
        records=parsed(lines),
        versions={"tfparallel": "0.1.0"},
    )


def of_a_split_model(stages: int = 2, data: int = 2, tensor: int = 2) -> run_records.RunRecords:
    """Return a run of a split model whose stages work for 1 ms forward and 2 ms backward."""
    run = with_a_loss()
    placement = progress.Placement(
        mesh=job_file.Mesh(data=data, stage=stages, tensor=tensor, microbatches=4),
        stages=tuple(_stage_placement(stage) for stage in range(stages)),
        reasons=("Stage 0 sets the pace: it is busy for 78% of a step of 0.02 s.",),
    )
    planned = _plan(stages, data, tensor)
    spans = tuple(
        span.model_copy(update={"begin": 1.5 * span.begin, "end": 1.5 * span.end})
        for span in planned.spans
        if span.work != plan.MESSAGE
    )
    measured = plan.Pipeline(placement=placement, planned=planned, step_seconds=0.05, spans=spans)
    differences = {verification.Quantity.GRADIENTS: verification.Difference(3e-15, 1e-10)}
    verified = verification.Verification.with_check(None, verification.Check(16, differences))
    status = run.job.status.model_copy(
        update={
            "strategy": "ModelSplit",
            "verification": job_status.VerificationStatus.model_validate(verified.model_dump()),
            "placement": job_status.PlacementStatus.model_validate(placement.model_dump()),
        }
    )
    return dataclasses.replace(
        run, job=dataclasses.replace(run.job, status=status), stages=measured
    )


def _stage_placement(stage: int) -> progress.StagePlacement:
    return progress.StagePlacement(
        stage=stage,
        devices=("worker-0/CPU:0",),
        device_count=4,
        layers="embedding to layer_normalization_4",
        layer_count=17,
        parameter_bytes=221184,
        busy_seconds="0.02",
        planned_seconds="0.012",
    )


def _plan(stages: int, data: int, tensor: int) -> plan.Plan:
    microbatches, count = 4, data * stages * tensor
    spans = [
        span
        for stage in range(stages)
        for microbatch in range(microbatches)
        for span in _spans(stage, microbatch, stages, microbatches)
    ]
    ranks = [
        plan.Rank(
            rank=number,
            process=number // max(1, count // 2),
            device=number % max(1, count // 2),
            data=number // (stages * tensor),
            stage=number // tensor % stages,
            spatial=0,
            tensor=number % tensor,
        )
        for number in range(count)
    ]
    return plan.Plan(
        mesh=plan.Axes(data=data, stage=stages, tensor=tensor),
        microbatches=microbatches,
        schedule=job_file.PipelineSchedule.GPIPE,
        batch=64,
        memory=12 * 2**20,
        measured=False,
        order=(0,),
        ends=(0,),
        stages=tuple(_stage(stage) for stage in range(stages)),
        ranks=tuple(ranks),
        step_seconds=1.2 * max(span.end for span in spans),
        bubble=plan.bubble(spans, stages),
        message_share=plan.message_share(spans, stages),
        spans=tuple(spans),
        reasons=(),
        alternatives=(),
    )


def _spans(stage: int, microbatch: int, stages: int, microbatches: int) -> Iterator[plan.Span]:
    """Yield all forwards first, then all backwards, with messages of a tenth of a millisecond."""
    forward = stage + microbatch
    back = stages + microbatches + 2 * (stages - 1 - stage + microbatch)
    for work, begin, length in (
        ("forward", forward, 0.9),
        (plan.MESSAGE, forward + 0.9, 0.1),
        ("backward", back, 1.9),
        (plan.MESSAGE, back + 1.9, 0.1),
    ):
        yield plan.Span(
            stage=stage,
            work=work,
            microbatch=microbatch,
            begin=1e-3 * begin,
            end=1e-3 * (begin + length),
        )


def _stage(stage: int) -> plan.Stage:
    return plan.Stage(
        nodes=("embedding", "dense", f"layer_normalization_{stage}"),
        split={},
        holds=plan.Bytes(
            parameters=2**20,
            gradients=2**20,
            slots=2 * 2**20,
            activations=5 * 2**20,
            working=2**20,
            peak=9 * 2**20,
        ),
        held_microbatches=2,
        forward_seconds=0.001,
        backward_seconds=0.002,
        message_seconds=0.0001,
        update_seconds=0.002,
        sent_bytes=1000,
        busy_seconds=0.012,
    )
