"""What `why` says of each way in which a pod can end."""

import textwrap
from typing import Any

import pytest

from testing.operator import ends as examples
from testing.operator import symptoms
from tfparallel.cli import why
from tfparallel.diagnosis import findings, rules
from tfparallel_operator.core import observation, pod_end_signs, pod_ends, remedies
from tfparallel_operator.engine.observe import records
from tfparallel_trainer.contract import exits

CASES = [
    pytest.param(end, status, id=f"{end.name}-{number}")
    for end in pod_ends.TABLE
    for number, status in enumerate(examples.EXAMPLES[end.name])
]
POD = "digits-worker-0"
FIELDS = ("phase", "exit", "disrupted", "deleting", "reason", "message")


def diagnose(name: str, status: dict[str, Any], **policy: Any) -> findings.Diagnosis | None:
    """Say why the job is as it is, after its worker has ended; None: it has not, for the trainer's
    exit with 0 is success, and a pod that still runs is no loss by itself."""
    pod = records.pod(examples.pod(name, status))
    assert pod is not None
    if pod.phase is not observation.Phase.FAILED:
        return None
    world = symptoms.running(run_policy=policy)
    world.update(POD, **{field: getattr(pod, field) for field in FIELDS})
    world.step()
    for _ in range(2):  # A verdict waits for the signs of another loss.
        world.advance(20)
        world.step()
    return rules.diagnose(symptoms.facts(world))


@pytest.mark.parametrize(("end", "status"), CASES)
def test_why_says_what_kubernetes_said_and_what_to_do(
    end: pod_end_signs.End, status: dict[str, Any]
) -> None:
    diagnosis = diagnose(end.name, status)
    if diagnosis is None:
        return
    assert diagnosis.kind is not findings.FindingKind.PENDING
    assert POD in diagnosis.sentence
    assert end.phrase in diagnosis.sentence
    message = str(status.get("message", "")).strip().rstrip(".")
    assert message in diagnosis.sentence
    if end.name in remedies.BY_END:
        assert diagnosis.remedy.startswith(remedies.BY_END[end.name])
    if end.of_pod:
        evidence = "\n".join(item.text for item in diagnosis.evidence)
        assert remedies.OUT_OF_MEMORY not in diagnosis.remedy
        assert "exited with -1" not in evidence


def test_a_job_that_fails_at_its_own_limit_names_the_limit() -> None:
    [status] = examples.EXAMPLES["pod-disk-limit"]
    diagnosis = diagnose("pod-disk-limit", status, backoffLimit=0)
    assert diagnosis is not None
    shown = "\n".join(why.render(diagnosis))
    sentence = (
        "digits failed 20s ago: digits-worker-0 was evicted because it passed its own limit"
        " (Evicted): Pod ephemeral local storage usage exceeds the total limit of containers 1Gi;"
        " all 0 restarts of runPolicy.backoffLimit are used."
    )
    assert shown.startswith("\n".join(textwrap.wrap(sentence, 79))), shown
    assert "resources.limits.ephemeral-storage" in shown
    assert "limits.memory" not in shown


def test_a_job_that_ran_out_of_memory_as_planned_says_what_would_make_its_model_fit() -> None:
    world = symptoms.large_model(backoffLimit=0)
    world.exit("digits-worker-1", exits.Exit.OUT_OF_MEMORY)
    for _ in range(2):
        world.run_until_quiet()
        world.advance(20)
    assert world.status.state == "Failed"
    remedy = rules.diagnose(symptoms.facts(world)).remedy
    assert remedies.OUT_OF_MEMORY in remedy
    assert "The model fits with mesh.shardOptimizer, with a batch of 16, or on" in remedy
