"""`tfparallel convert`: a TFJob means the same afterwards, and what does not is told."""

import copy
import difflib
import pathlib

import pytest

from testing.operator import tfjobs as jobs
from tfparallel.convert import tfjob
from tfparallel.convert.differences import Difference
from tfparallel_operator.api import load, names, types

SHAPES = sorted((pathlib.Path(__file__).parent / "tfjobs").glob("*.yaml"))


def test_a_job_that_says_everything_changes_by_its_two_lines_alone() -> None:
    result = jobs.run("-", given=jobs.PLAIN)
    assert (result.exit_code, result.stderr) == (0, "")
    changed = [
        line
        for line in difflib.ndiff(jobs.PLAIN.splitlines(), result.stdout.splitlines())
        if line[0] in "+-"
    ]
    assert changed == [
        "- apiVersion: kubeflow.org/v1",
        "- kind: TFJob",
        "+ apiVersion: tfparallel.dev/v1alpha1",
        "+ kind: TFParallelJob",
    ]


@pytest.mark.parametrize("file", SHAPES, ids=lambda file: file.stem)
def test_every_shape_is_converted_with_its_comments_and_order(file: pathlib.Path) -> None:
    result = jobs.run(str(file))
    assert result.exit_code == 0, result.stderr
    assert "rewritten without" not in result.stderr
    before, after = file.read_text().splitlines(), result.stdout.splitlines()
    comments = [line for line in before if line.lstrip().startswith("#")]
    assert [line for line in after if line.lstrip().startswith("#")] == comments
    documents = load.parse_documents(result.stdout, "converted")
    made = [one for document in documents for one in document.get("items", [document])]
    assert any(load.parse_job(job).spec for job in made if job["kind"] == names.KIND)
    assert "kubeflow.org" not in result.stdout


CASES: list[tuple[Difference, jobs.Change]] = [
    (Difference.RESTART_POLICY, lambda d: jobs.worker(d).pop("restartPolicy")),
    (Difference.RESTART_POLICY, lambda d: jobs.worker(d).update(restartPolicy=None)),
    (Difference.CLEAN_POD_POLICY, lambda d: d["spec"].pop("runPolicy")),
    (Difference.BACKOFF_LIMIT, lambda d: jobs.worker(d).update(restartPolicy="ExitCode")),
    (Difference.COUNTED, lambda d: jobs.policy(d).update(backoffLimit=2)),
    (Difference.TOGETHER, lambda d: jobs.worker(d).update(restartPolicy="OnFailure")),
    (Difference.ALWAYS, lambda d: jobs.worker(d).update(restartPolicy="Always")),
    *(
        (
            difference,
            lambda d: jobs.roles(d).update(Evaluator=jobs.worker(d) | {"replicas": 1}),
        )
        for difference in (
            Difference.EVALUATOR_FAILS,
            Difference.EVALUATOR_GRACE,
            Difference.EVALUATOR_ADDRESS,
        )
    ),
    (
        Difference.MASTER,
        lambda d: jobs.roles(d).update(Master=jobs.roles(d).pop("Chief")),
    ),
    (Difference.SERVERS, lambda d: jobs.roles(d).update(PS=jobs.roles(d).pop("Chief"))),
    (Difference.ONE_REPLICA, lambda d: jobs.roles(d).pop("Worker")),
    (
        Difference.GIVEN_TF_CONFIG,
        lambda d: jobs.pod(d)["containers"][0].update(env=[{"name": "TF_CONFIG", "value": "{}"}]),
    ),
    (Difference.HOSTNAME, lambda d: jobs.pod(d).update(hostname="me", subdomain="here")),
    (
        Difference.LABELS,
        lambda d: jobs.pod(d).update(
            topologySpreadConstraints=[
                {"labelSelector": {"matchLabels": {"tf-job-name": "plain"}}, "maxSkew": 1}
            ]
        ),
    ),
    (
        Difference.LABELS,
        lambda d: jobs.pod(d).update(nodeSelector={"training.kubeflow.org/job-role": "master"}),
    ),
    (Difference.DEADLINE, lambda d: jobs.policy(d).update(activeDeadlineSeconds=60)),
    (
        Difference.SCHEDULING_POLICY,
        lambda d: jobs.policy(d).update(schedulingPolicy={"queue": "a"}),
    ),
    (
        Difference.POD_GROUP,
        lambda d: jobs.worker(d)["template"].update(
            metadata={"annotations": {"scheduling.k8s.io/group-name": "plain"}}
        ),
    ),
    (
        Difference.MANAGED_BY,
        lambda d: jobs.policy(d).update(managedBy="kubeflow.org/training-operator"),
    ),
    (
        Difference.QUEUE,
        lambda d: d["metadata"].update(labels={"kueue.x-k8s.io/queue-name": "research"}),
    ),
    (
        Difference.ROLE_KEYS,
        lambda d: jobs.roles(d).update(WORKER=jobs.roles(d).pop("Worker")),
    ),
    (Difference.NO_REPLICAS, lambda d: jobs.worker(d).update(replicas=0)),
    (Difference.CLEAN_WORD, lambda d: jobs.policy(d).update(cleanPodPolicy="running")),
    (Difference.SUCCESS_WORD, lambda d: d["spec"].update(successPolicy="allworkers")),
    (Difference.MISPLACED, lambda d: d["spec"].update(cleanPodPolicy="All", runPolicy=None)),
    (Difference.UNKNOWN, lambda d: d["spec"].update(tfRpcLayer="grpc")),
    (Difference.UNKNOWN, lambda d: jobs.policy(d).update(cleanPodDelay="5m")),
    (Difference.UNKNOWN, lambda d: jobs.worker(d).update(tfPort=2222)),
    (Difference.UNKNOWN, lambda d: d.update(extra=1)),
    (Difference.EXPORTED, lambda d: d["metadata"].update(uid="1", generation=3)),
    (Difference.EXPORTED, lambda d: d.update(status={"conditions": []})),
]


@pytest.mark.parametrize(
    ("difference", "change"), CASES, ids=[f"{n}-{case[0].name}" for n, case in enumerate(CASES)]
)
def test_what_is_different_is_told_and_the_job_is_valid(
    difference: Difference, change: jobs.Change
) -> None:
    assert not jobs.convert(jobs.plain()).notices
    given = jobs.plain(change)
    kept = copy.deepcopy(given)
    converted = jobs.convert(given)
    assert difference in jobs.found(converted)
    assert given == kept
    assert load.parse_job(converted.document).metadata.name == "plain"


def test_every_difference_that_depends_on_the_job_is_tried() -> None:
    tried = {case[0] for case in CASES}
    assert tried == {one for one in Difference if not one.value.everywhere}


def test_a_scheduling_policy_is_kept_with_what_it_says() -> None:
    known = {"minAvailable": 2, "minResources": {"cpu": 4, "nvidia.com/gpu": "8"}}
    given = {**known, "queue": "", "priorityClass": None, "other": 1}
    converted = jobs.convert(jobs.plain(lambda d: jobs.policy(d).update(schedulingPolicy=given)))
    assert converted.document["spec"]["runPolicy"]["schedulingPolicy"] == known
    assert {Difference.SCHEDULING_POLICY, Difference.UNKNOWN} <= jobs.found(converted)


def test_another_manager_is_kept() -> None:
    given = jobs.plain(lambda d: jobs.policy(d).update(managedBy="kueue.x-k8s.io/multikueue"))
    assert (
        jobs.convert(given).document["spec"]["runPolicy"]["managedBy"]
        == "kueue.x-k8s.io/multikueue"
    )


def test_the_defaults_of_tfjob_are_written() -> None:
    def bare(document: jobs.Document) -> None:
        del document["spec"]["runPolicy"]
        del jobs.worker(document)["restartPolicy"], jobs.worker(document)["replicas"]
        jobs.roles(document)["Chief"]["restartPolicy"] = "OnFailure"

    spec = load.parse_job(jobs.convert(jobs.plain(bare)).document).spec
    assert spec.run_policy.clean_pod_policy is types.CleanPodPolicy.NONE
    assert spec.run_policy.backoff_limit == tfjob.UNLIMITED
    assert spec.tf_replica_specs[types.Role.WORKER].restart_policy is types.RestartPolicy.NEVER
    assert spec.tf_replica_specs[types.Role.WORKER].replicas == 1
    made = jobs.convert(jobs.plain(bare), write_defaults=False).document
    assert "runPolicy" not in made["spec"]
    assert "restartPolicy" not in jobs.worker(made)


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1", "v1alpha2"])
def test_an_absent_clean_pod_policy_means_what_it_meant_in_that_version(version: str) -> None:
    def old(document: jobs.Document) -> None:
        document["apiVersion"] = f"kubeflow.org/{version}"
        del document["spec"]["runPolicy"]

    assert jobs.policy(jobs.convert(jobs.plain(old)).document) == {"cleanPodPolicy": "Running"}


def test_given_fields_are_kept_as_they_are() -> None:
    def full(document: jobs.Document) -> None:
        jobs.policy(document).update(
            cleanPodPolicy="All", ttlSecondsAfterFinished=0, backoffLimit=0, suspend=True
        )
        jobs.policy(document)["managedBy"] = "kueue.x-k8s.io/multikueue"
        document["spec"].update(successPolicy="AllWorkers", enableDynamicWorker=True)
        jobs.worker(document).update(restartPolicy="ExitCode")
        jobs.pod(document)["containers"][0]["ports"] = [
            {"name": "tfjob-port", "containerPort": 3333}
        ]

    given = jobs.plain(full)
    assert jobs.convert(given).document["spec"] == given["spec"]


def test_a_tf_config_that_tfjob_leaves_alone_stays() -> None:
    def alone(document: jobs.Document) -> None:
        del jobs.roles(document)["Chief"]
        jobs.worker(document)["replicas"] = 1
        jobs.pod(document)["containers"][0]["env"] = [{"name": "TF_CONFIG", "value": "{}"}]

    made = jobs.convert(jobs.plain(alone)).document
    assert jobs.pod(made)["containers"][0]["env"] == [{"name": "TF_CONFIG", "value": "{}"}]


def test_other_variables_and_containers_keep_theirs() -> None:
    mine = {"name": "TF_CONFIG", "value": "{}"}

    def more(document: jobs.Document) -> None:
        containers = jobs.pod(document)["containers"]
        containers[0]["env"] = [mine, {"name": "A", "value": "1"}]
        containers.append({"name": "sidecar", "image": "x", "env": [mine]})

    first, second = jobs.pod(jobs.convert(jobs.plain(more)).document)["containers"]
    assert first["env"] == [{"name": "A", "value": "1"}]
    assert second["env"] == [mine]


def test_a_name_that_the_api_server_makes_is_no_obstacle() -> None:
    def generated(document: jobs.Document) -> None:
        document["metadata"] = {"generateName": "plain-"}

    assert jobs.convert(jobs.plain(generated)).document["metadata"] == {"generateName": "plain-"}
