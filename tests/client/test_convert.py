"""`tfparallel convert`: a TFJob means the same afterwards, and what does not is reported."""

import copy
import difflib
import functools
import pathlib
from typing import Any

import pytest

from testing.operator import tfjobs as jobs
from tfparallel.convert import conversion, tfjob
from tfparallel.convert.tfjob_differences import TFJobDifference
from tfparallel_operator.api import load, names, types, yaml_documents

SHAPES = sorted((pathlib.Path(__file__).parent / "tfjobs").glob("*.yaml"))


def test_a_job_that_says_everything_changes_by_its_two_lines_alone() -> None:
    result = jobs.run("-", text=jobs.PLAIN)
    assert result.exit_code == 0
    assert "COSMETIC" not in result.stderr
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
    documents = yaml_documents.parse(result.stdout, "converted")
    objects = [item for document in documents for item in document.get("items", [document])]
    assert any(load.parse_job(job).spec for job in objects if job["kind"] == names.KIND)
    assert "kubeflow.org" not in result.stdout


def with_image(document: dict[str, Any], image: str) -> None:
    jobs.worker(document)["template"]["spec"]["containers"][0]["image"] = image


def test_an_image_of_tensorflow_2_is_none_of_tensorflow_1() -> None:
    for image in ("tensorflow/tensorflow:2.16.1", "me/tensorflow:v21.5", "me/tf-dist-mnist:1.0"):
        document = jobs.plain(functools.partial(with_image, image=image))
        assert jobs.differences(jobs.convert(document)) == {TFJobDifference.DISRUPTION}


CASES: list[tuple[TFJobDifference, jobs.Change]] = [
    (TFJobDifference.RESTART_POLICY, lambda d: jobs.worker(d).pop("restartPolicy")),
    (TFJobDifference.RESTART_POLICY, lambda d: jobs.worker(d).update(restartPolicy=None)),
    (TFJobDifference.CLEAN_POD_POLICY, lambda d: d["spec"].pop("runPolicy")),
    (TFJobDifference.BACKOFF_LIMIT, lambda d: jobs.worker(d).update(restartPolicy="ExitCode")),
    (TFJobDifference.COUNTED, lambda d: jobs.policy(d).update(backoffLimit=2)),
    (TFJobDifference.TOGETHER, lambda d: jobs.worker(d).update(restartPolicy="OnFailure")),
    (TFJobDifference.ALWAYS, lambda d: jobs.worker(d).update(restartPolicy="Always")),
    *(
        (
            difference,
            lambda d: jobs.roles(d).update(Evaluator=jobs.worker(d) | {"replicas": 1}),
        )
        for difference in (
            TFJobDifference.EVALUATOR_FAILS,
            TFJobDifference.EVALUATOR_GRACE,
            TFJobDifference.EVALUATOR_ADDRESS,
        )
    ),
    (
        TFJobDifference.MASTER,
        lambda d: jobs.roles(d).update(Master=jobs.roles(d).pop("Chief")),
    ),
    (TFJobDifference.SERVERS, lambda d: jobs.roles(d).update(PS=jobs.roles(d).pop("Chief"))),
    (TFJobDifference.ONE_REPLICA, lambda d: jobs.roles(d).pop("Worker")),
    (
        TFJobDifference.TEMPLATE_TF_CONFIG,
        lambda d: jobs.pod(d)["containers"][0].update(env=[{"name": "TF_CONFIG", "value": "{}"}]),
    ),
    (
        TFJobDifference.DISRUPTION,
        lambda d: jobs.roles(d)["Chief"].update(restartPolicy="OnFailure"),
    ),
    (
        TFJobDifference.NETWORK,
        lambda d: jobs.pod(d)["containers"][0].update(ports=[{"containerPort": 6006}]),
    ),
    (
        TFJobDifference.ADDRESSES,
        lambda d: jobs.pod(d)["containers"][0].update(args=["--chief=plain-chief-0.ns.svc:2222"]),
    ),
    (TFJobDifference.HOSTNAME, lambda d: jobs.pod(d).update(hostname="me", subdomain="here")),
    (
        TFJobDifference.LABELS,
        lambda d: jobs.pod(d).update(
            topologySpreadConstraints=[
                {"labelSelector": {"matchLabels": {"tf-job-name": "plain"}}, "maxSkew": 1}
            ]
        ),
    ),
    (
        TFJobDifference.LABELS,
        lambda d: jobs.pod(d).update(nodeSelector={"training.kubeflow.org/job-role": "master"}),
    ),
    (TFJobDifference.POD_RESTART_POLICY, lambda d: jobs.pod(d).update(restartPolicy="Never")),
    (
        TFJobDifference.CONTAINER_RESTART_POLICY,
        lambda d: jobs.pod(d)["containers"][0].update(restartPolicy="OnFailure"),
    ),
    (TFJobDifference.DEADLINE, lambda d: jobs.policy(d).update(activeDeadlineSeconds=60)),
    (
        TFJobDifference.SCHEDULING_POLICY,
        lambda d: jobs.policy(d).update(schedulingPolicy={"queue": "a"}),
    ),
    (
        TFJobDifference.SCHEDULER,
        lambda d: jobs.worker(d)["template"]["spec"].update(schedulerName="volcano"),
    ),
    *(
        (TFJobDifference.IMAGE, functools.partial(with_image, image=image))
        for image in (
            "tensorflow/tensorflow:1.15.5-py3",
            "gcr.io/kubeflow-ci/tf-dist-mnist-test:1.0",
            "kubeflow/tf-mnist-with-summaries",
        )
    ),
    (
        TFJobDifference.POD_GROUP,
        lambda d: jobs.worker(d)["template"].update(
            metadata={"annotations": {"scheduling.k8s.io/group-name": "plain"}}
        ),
    ),
    (
        TFJobDifference.MANAGED_BY,
        lambda d: jobs.policy(d).update(managedBy="kubeflow.org/training-operator"),
    ),
    (
        TFJobDifference.QUEUE,
        lambda d: d["metadata"].update(labels={"kueue.x-k8s.io/queue-name": "research"}),
    ),
    (
        TFJobDifference.ROLE_KEYS,
        lambda d: jobs.roles(d).update(WORKER=jobs.roles(d).pop("Worker")),
    ),
    (TFJobDifference.NO_REPLICAS, lambda d: jobs.worker(d).update(replicas=0)),
    (TFJobDifference.CLEAN_WORD, lambda d: jobs.policy(d).update(cleanPodPolicy="running")),
    (TFJobDifference.SUCCESS_WORD, lambda d: d["spec"].update(successPolicy="allworkers")),
    (TFJobDifference.MISPLACED, lambda d: d["spec"].update(cleanPodPolicy="All", runPolicy=None)),
    (TFJobDifference.UNKNOWN, lambda d: d["spec"].update(tfRpcLayer="grpc")),
    (TFJobDifference.UNKNOWN, lambda d: jobs.policy(d).update(cleanPodDelay="5m")),
    (TFJobDifference.UNKNOWN, lambda d: jobs.worker(d).update(tfPort=2222)),
    (TFJobDifference.UNKNOWN, lambda d: d.update(extra=1)),
    (TFJobDifference.EXPORTED, lambda d: d["metadata"].update(uid="1", generation=3)),
    (TFJobDifference.EXPORTED, lambda d: d.update(status={"conditions": []})),
]


DEFAULTS: list[tuple[TFJobDifference, jobs.Change]] = [
    (TFJobDifference.DEFAULT_RESTART_POLICY, lambda d: jobs.worker(d).pop("restartPolicy")),
    (TFJobDifference.DEFAULT_CLEAN_POD_POLICY, lambda d: d["spec"].pop("runPolicy")),
    (
        TFJobDifference.DEFAULT_BACKOFF_LIMIT,
        lambda d: jobs.worker(d).update(restartPolicy="OnFailure"),
    ),
]
"""What differs when defaults are not written."""

OTHER_OBJECTS = {TFJobDifference.SERVICES}
"""What objects next to a job depend on: see tests/client/test_convert_files.py."""


@pytest.mark.parametrize(
    ("difference", "change"), CASES, ids=[f"{n}-{case[0].name}" for n, case in enumerate(CASES)]
)
def test_what_is_different_is_reported_and_the_job_is_valid(
    difference: TFJobDifference, change: jobs.Change
) -> None:
    assert jobs.differences(jobs.convert(jobs.plain())) == {TFJobDifference.DISRUPTION}
    document = jobs.plain(change)
    before = copy.deepcopy(document)
    converted = jobs.convert(document)
    assert difference in jobs.differences(converted)
    assert document == before
    assert load.parse_job(converted.document).metadata.name == "plain"


@pytest.mark.parametrize(
    ("difference", "change"), DEFAULTS, ids=[case[0].name for case in DEFAULTS]
)
def test_a_default_that_is_not_written_is_a_difference_in_behavior(
    difference: TFJobDifference, change: jobs.Change
) -> None:
    converted = jobs.convert(jobs.plain(change), write_defaults=False)
    [notice] = [notice for notice in converted.notices if notice.difference is difference]
    assert notice.severity is conversion.Severity.BEHAVIOR
    assert difference not in jobs.differences(jobs.convert(jobs.plain(change)))


def test_a_job_that_never_says_never_has_no_word_on_disruptions() -> None:
    def retries(document: jobs.Document) -> None:
        for role in jobs.roles(document).values():
            role["restartPolicy"] = "OnFailure"

    differences = jobs.differences(jobs.convert(jobs.plain(retries)))
    assert TFJobDifference.DISRUPTION not in differences


def test_the_ports_of_peers_are_no_reason_to_speak_of_the_network() -> None:
    def peers(document: jobs.Document) -> None:
        ports = [{"name": names.PORT_NAME, "containerPort": 3333}]
        jobs.pod(document)["containers"][0]["ports"] = ports

    assert TFJobDifference.NETWORK not in jobs.differences(jobs.convert(jobs.plain(peers)))


def test_every_difference_that_may_depend_on_a_job_is_tried() -> None:
    tried = {case[0] for case in (*CASES, *DEFAULTS)} | OTHER_OBJECTS
    assert set(TFJobDifference) - tried == {TFJobDifference.ENVIRONMENT}


def test_a_scheduling_policy_is_kept_with_what_it_says() -> None:
    fields = {"minAvailable": 2, "minResources": {"cpu": 4, "nvidia.com/gpu": "8"}}
    policy = {**fields, "queue": "", "priorityClass": None, "other": 1}
    converted = jobs.convert(jobs.plain(lambda d: jobs.policy(d).update(schedulingPolicy=policy)))
    assert converted.document["spec"]["runPolicy"]["schedulingPolicy"] == fields
    assert {TFJobDifference.SCHEDULING_POLICY, TFJobDifference.UNKNOWN} <= jobs.differences(
        converted
    )


def test_another_manager_is_kept() -> None:
    document = jobs.plain(lambda d: jobs.policy(d).update(managedBy="kueue.x-k8s.io/multikueue"))
    assert jobs.convert(document).document["spec"]["managedBy"] == "kueue.x-k8s.io/multikueue"


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
    converted = jobs.convert(jobs.plain(bare), write_defaults=False).document
    assert "runPolicy" not in converted["spec"]
    assert "restartPolicy" not in jobs.worker(converted)


def test_a_job_of_the_first_version_is_refused_with_what_to_write() -> None:
    document = jobs.plain(lambda d: d.update(apiVersion="kubeflow.org/v1alpha1"))
    with pytest.raises(load.SpecError, match=r"write the roles below spec\.tfReplicaSpecs, as"):
        jobs.convert(document)


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1", "v1alpha2"])
def test_an_absent_clean_pod_policy_means_what_it_meant_in_that_version(version: str) -> None:
    def old(document: jobs.Document) -> None:
        document["apiVersion"] = f"kubeflow.org/{version}"
        del document["spec"]["runPolicy"]

    assert jobs.policy(jobs.convert(jobs.plain(old)).document) == {"cleanPodPolicy": "Running"}


def test_fields_that_a_job_has_are_kept_as_they_are() -> None:
    def full(document: jobs.Document) -> None:
        jobs.policy(document).update(
            cleanPodPolicy="All", ttlSecondsAfterFinished=0, backoffLimit=0, suspend=True
        )
        document["spec"].update(successPolicy="AllWorkers", enableDynamicWorker=True)
        jobs.worker(document).update(restartPolicy="ExitCode")
        jobs.pod(document)["containers"][0]["ports"] = [
            {"name": "tfjob-port", "containerPort": 3333}
        ]

    document = jobs.plain(full)
    assert jobs.convert(document).document["spec"] == document["spec"]


def test_a_tf_config_that_tfjob_leaves_alone_stays() -> None:
    def alone(document: jobs.Document) -> None:
        del jobs.roles(document)["Chief"]
        jobs.worker(document)["replicas"] = 1
        jobs.pod(document)["containers"][0]["env"] = [{"name": "TF_CONFIG", "value": "{}"}]

    converted = jobs.convert(jobs.plain(alone)).document
    assert jobs.pod(converted)["containers"][0]["env"] == [{"name": "TF_CONFIG", "value": "{}"}]


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
