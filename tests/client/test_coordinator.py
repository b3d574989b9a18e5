"""Which replica coordinates: the client has the answer of the operator's layout."""

import dataclasses
from collections.abc import AsyncGenerator, Sequence

import pytest

from testing import report_runs
from testing.operator import symptoms
from tfparallel import models, replica_logs
from tfparallel.diagnosis import findings, job_diagnosis
from tfparallel.report import content, history, run_records
from tfparallel_operator.api import load, names

SERVERS = {"spec": {"strategy": "ParameterServer"}, "worker": 2, "ps": 1}
COORDINATORS = [(True, "worker-0"), (False, "chief-0")]
"""Of workers and servers without a chief: the trainer adds one, a script has none."""


class Backend(symptoms.Backend):
    """Has a log of each replica."""

    async def read_logs(
        self, replica: models.Replica, job: models.Job, *, follow: bool, tail: int | None
    ) -> AsyncGenerator[str, None]:
        yield f"a line of {job.name} {replica.name} {follow} {tail}"

    async def list_operators(self) -> Sequence[models.Operator] | None:
        return None


def read_facts(*, script: bool) -> findings.JobSnapshot:
    job = {**SERVERS, "spec": {}} if script else SERVERS
    return symptoms.facts(symptoms.running(script=script, **job))


def build_run(*, script: bool) -> run_records.RunRecords:
    """Return a run with a train log, whose pods are gone."""
    run = report_runs.with_a_loss()
    manifest = read_facts(script=script).job.manifest
    return dataclasses.replace(run, job=dataclasses.replace(run.job, manifest=manifest), pods=())


@pytest.mark.parametrize(("script", "coordinator"), COORDINATORS)
async def test_logs_shows_the_replica_that_coordinates(script: bool, coordinator: str) -> None:
    facts = read_facts(script=script)
    assert coordinator in {replica.name for replica in facts.replicas}
    lines = [line async for line in replica_logs.read(Backend(facts), facts.job)]  # type: ignore[arg-type]
    assert [line.replica for line in lines] == [coordinator]


@pytest.mark.parametrize(("script", "coordinator"), COORDINATORS)
async def test_why_has_its_last_lines(script: bool, coordinator: str) -> None:
    facts = read_facts(script=script)
    diagnosis = await job_diagnosis.diagnose(Backend(facts), facts.job)  # type: ignore[arg-type]
    log = [fact.text for fact in diagnosis.evidence if fact.source is findings.EvidenceSource.LOG]
    assert log == [f"{coordinator}: a line of digits {coordinator} False 18"]


@pytest.mark.parametrize(("script", "coordinator"), COORDINATORS)
def test_the_report_follows_it(script: bool, coordinator: str) -> None:
    run = build_run(script=script)
    assert {bar.replica for bar in history.bars(run)} == {coordinator}
    replicas = dict(content.make(run).facts)["replicas"]
    assert replicas == ("Worker 2, PS 1" if script else "Chief 1, Worker 2, PS 1")


async def test_a_spec_that_this_version_cannot_read_names_no_replica() -> None:
    facts = read_facts(script=True)
    manifest = {**facts.job.manifest, "spec": {"tfReplicaSpecs": {"Pilot": {}}}}
    job = dataclasses.replace(facts.job, manifest=manifest)
    with pytest.raises(load.SpecError, match=r"cannot read the spec of digits.* Name a replica"):
        [line async for line in replica_logs.read(Backend(facts), job)]  # type: ignore[arg-type]
    assert replica_logs.list_witnesses(job, facts.replicas) == []
    run = dataclasses.replace(report_runs.with_a_loss(), job=job)
    assert "replicas" not in dict(content.make(run).facts)
    assert job.state == names.State.RUNNING
