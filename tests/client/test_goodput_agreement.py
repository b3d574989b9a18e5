"""Counters, `status`, `report` and `why` give the seconds of one job as equal numbers."""

import datetime
import io
import json
from collections.abc import Mapping
from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from rich import console as rich_console

from testing.operator import builders, goodput_reports
from tfparallel import models
from tfparallel.cli import why
from tfparallel.diagnosis import findings, rules
from tfparallel.report import content, run_records
from tfparallel.terminal import activities, job_tables
from tfparallel_operator import wall_clock
from tfparallel_operator.api import job_status, names
from tfparallel_operator.core.status import goodput
from tfparallel_operator.engine.telemetry import metrics
from tfparallel_trainer.contract import progress

SECONDS = st.integers(0, 90)
PARTS = st.tuples(*[st.integers(0, 20)] * 5)
"""Seconds between two reports: training, input wait, evaluating, checkpointing, recomputing."""
LIVES = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), SECONDS),
        st.tuples(st.just("run"), SECONDS),
        st.tuples(st.just("train"), PARTS),
        st.tuples(st.just("train"), PARTS),
        st.tuples(st.just("exit"), st.sampled_from([0, 75, 137])),
        st.tuples(st.just("suspend"), st.booleans()),
    ),
    max_size=25,
)


class Life:
    """A job whose coordinator reports the truth, and the counters of its operator."""

    def __init__(self) -> None:
        job = builders.a_job(worker=2, trainer=True, run_policy={"backoffLimit": 3})
        self.world = builders.World(job)
        moment = builders.START - datetime.timedelta(seconds=7)
        metadata = self.world.job.metadata.model_copy(
            update={"creation_timestamp": moment.isoformat()}
        )
        self.world.job = self.world.job.model_copy(update={"metadata": metadata})
        self.created = moment
        self.counted = metrics.Metrics()
        self._spent: tuple[int, ...] = (0,) * 5
        """Seconds since the first step of an attempt."""
        self._reporting = 0
        """The attempt; 0 before its first step."""
        self._body = self._read()
        self._settle_world()

    def act(self, action: str, fact: Any) -> None:
        """Let something happen, and the operator answer."""
        match action:
            case "pass":
                self.world.advance(fact)
            case "run":
                self.world.advance(fact).run()
            case "train":
                self._report_training(fact)
            case "exit":
                for pod in [*self.world.pods.values()][:1]:
                    self.world.exit(pod.name, fact)
            case _:
                self.world.edit(suspend=fact)
        self._settle_world()

    def _report_training(self, parts: tuple[int, ...]) -> None:
        status = self.world.status
        if not any(c.type == "Running" and c.status == "True" for c in status.conditions):
            return
        if self._reporting != status.attempt:  # the first step, which no seconds precede
            self._spent, self._reporting = (0,) * 5, status.attempt
        else:
            self.world.advance(sum(parts))
            pairs = zip(self._spent, parts, strict=True)
            self._spent = tuple(before + more for before, more in pairs)
        training, waited, evaluating, checkpointing, recomputing = self._spent
        seconds = progress.RunSeconds(
            training=training,
            input_wait=waited,
            evaluating=evaluating,
            checkpointing=checkpointing,
            recomputing=recomputing,
        )
        goodput_reports.report(self.world, seconds)

    def _settle_world(self) -> None:
        """Count each version of the status, as the operator does when it sees it."""
        self._count()
        while self.world.step():
            self._count()
            self.world.reap()

    def _count(self) -> None:
        before, self._body = self._body, self._read()
        self.counted.job_changed(before, self._body)

    def _read(self) -> dict[str, Any]:
        status = self.world.status.model_dump(by_alias=True, mode="json", exclude_none=True)
        return {"metadata": {"uid": "1"}, "status": status}

    @property
    def job(self) -> models.Job:
        """The job as a client reads it."""
        status = job_status.JobStatus.model_validate_json(json.dumps(self._body["status"]))
        manifest = self.world.job.model_dump(by_alias=True, mode="json", exclude_none=True)
        return models.Job("job", "ns", "1", self.created, status, manifest)


def read_counters(counted: metrics.Metrics) -> Mapping[str, float]:
    """Return the seconds that the counters have."""
    name = "tfparallel_job_activity_seconds_total"
    read = counted.registry.get_sample_value
    return {kind.value: read(name, {"activity": kind.value}) or 0 for kind in names.Activity}


def read_report(job: models.Job, now: datetime.datetime) -> goodput.Goodput | None:
    """Return what the page of a report shows."""
    return content.make(run_records.RunRecords(job=job, source="here", now=now)).goodput


def read_diagnosis(job: models.Job, now: datetime.datetime) -> dict[str, Any]:
    """Return the answer of `why -o json`."""
    facts = findings.JobSnapshot(job, (), (), (), (), None, now)
    shown = why.to_object(job.name, job.namespace, rules.diagnose(facts))
    return dict(json.loads(json.dumps(shown)))


def read_status(job: models.Job, now: datetime.datetime) -> str:
    """Return what `status` prints."""
    file = io.StringIO()
    with mock.patch.object(wall_clock, "utc_now", return_value=now):
        job_tables.show(rich_console.Console(file=file, width=400), job, (), ())
    return " ".join(file.getvalue().split())


@given(LIVES, SECONDS)
def test_every_place_has_equal_seconds_whose_sum_is_the_age(
    actions: list[tuple[str, Any]], later: int
) -> None:
    life = Life()
    for action, fact in actions:
        life.act(action, fact)
    job = life.job
    moment = goodput.find_known_time(job.status)
    assert moment is not None and job.status.goodput is not None
    for now in (moment, moment + datetime.timedelta(seconds=later)):
        measured = goodput.measure(job.status, now)
        assert measured is not None
        end = now if job.status.goodput.phase else job.status.goodput.since
        assert measured.age == (end - life.created).total_seconds()
        assert read_report(job, now) == measured
        if measured.age:
            shown = read_diagnosis(job, now)["goodput"]
            expected = {"age": measured.age, "share": measured.share}
            assert shown == {**expected, "seconds": dict(measured.seconds)}
            assert f"goodput {activities.describe(measured)} " in read_status(job, now)
    certain = goodput.measure(job.status, moment)
    assert certain is not None
    assert read_counters(life.counted) == certain.seconds
