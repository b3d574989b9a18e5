"""`tfparallel convert` on a TrainJob of Kubeflow Trainer: what is carried over, and what is not."""

import copy
from typing import Any

import pytest
import yaml

from testing.operator import tfjobs as jobs
from tfparallel.convert import conversion, trainjob
from tfparallel.convert.trainjob_differences import TrainJobDifference
from tfparallel_operator.api import load, types

TEXT = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: plain
spec:
  runtimeRef:
    name: tensorflow-distributed
  trainer:
    image: example/plain:1
    command: [python, train.py]
    args: [--epochs=3]
    numNodes: 2
    env:
      - name: A
        value: "1"
    resourcesPerNode:
      limits:
        nvidia.com/gpu: 1
"""
NODE = {"targetJobs": [{"name": "node"}]}
PATCH = {
    "metadata": {"labels": {"team": "a"}},
    "spec": {
        "serviceAccountName": "reader",
        "volumes": [{"name": "data", "emptyDir": {}}],
        "containers": [{"name": "node", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
    },
}


def plain(change: jobs.Change = lambda _: None) -> jobs.Document:
    document: jobs.Document = yaml.safe_load(TEXT)
    change(document)
    return document


def convert(change: jobs.Change = lambda _: None, *, defaults: bool = True) -> conversion.Converted:
    document = plain(change)
    before = copy.deepcopy(document)
    converted = trainjob.convert(document, write_defaults=defaults)
    assert document == before
    return converted


def runtime_patch(template: dict[str, Any], job: str = "node") -> list[dict[str, Any]]:
    replicated = {"name": job, "template": {"spec": {"template": template}}}
    spec = {"template": {"spec": {"replicatedJobs": [replicated]}}}
    return [{"manager": "example.com/me", "trainingRuntimeSpec": spec}]


def test_what_trains_is_carried_over() -> None:
    converted = convert()
    assert load.parse_job(converted.document).spec.success_policy is types.SuccessPolicy.ALL_WORKERS
    worker = jobs.worker(converted.document)
    assert worker["replicas"] == 2
    assert worker["template"]["spec"]["containers"] == [
        {
            "name": "tensorflow",
            "image": "example/plain:1",
            "command": ["python", "train.py"],
            "args": ["--epochs=3"],
            "env": [{"name": "A", "value": "1"}],
            "resources": {"limits": {"nvidia.com/gpu": 1}},
        }
    ]
    assert jobs.differences(converted) == {
        TrainJobDifference.RUNTIME,
        TrainJobDifference.VARIABLES,
        TrainJobDifference.RESTARTS,
        TrainJobDifference.SUCCESS,
    }


CASES: list[tuple[TrainJobDifference, jobs.Change]] = [
    (TrainJobDifference.RUNTIME, lambda d: d["spec"]["trainer"].pop("command")),
    (TrainJobDifference.NUM_NODES, lambda d: d["spec"]["trainer"].pop("numNodes")),
    (
        TrainJobDifference.INITIALIZER,
        lambda d: d["spec"].update(initializer={"dataset": {"storageUri": "s3://a/b"}}),
    ),
    (
        TrainJobDifference.OTHER_TARGETS,
        lambda d: d["spec"].update(podTemplateOverrides=[{"targetJobs": [{"name": "model"}]}]),
    ),
    (
        TrainJobDifference.OTHER_TARGETS,
        lambda d: d["spec"].update(
            podTemplateOverrides=[NODE | {"spec": {"containers": [{"name": "sidecar"}]}}]
        ),
    ),
    (
        TrainJobDifference.OTHER_TARGETS,
        lambda d: d["spec"].update(
            podTemplateOverrides=[NODE | {"spec": {"initContainers": [{"name": "first"}]}}]
        ),
    ),
    (
        TrainJobDifference.OTHER_TARGETS,
        lambda d: d["spec"].update(runtimePatches=runtime_patch({}, "dataset-initializer")),
    ),
    (
        TrainJobDifference.OTHER_TARGETS,
        lambda d: d["spec"].update(
            runtimePatches=[
                {"trainingRuntimeSpec": {"template": {"metadata": {"labels": {"a": "b"}}}}}
            ]
        ),
    ),
    (
        TrainJobDifference.POD_LABELS,
        lambda d: d["spec"].update(
            podTemplateOverrides=[
                NODE | {"spec": {"nodeSelector": {"jobset.sigs.k8s.io/jobset-name": "plain"}}}
            ]
        ),
    ),
    (
        TrainJobDifference.QUEUE,
        lambda d: d["metadata"].update(labels={"kueue.x-k8s.io/queue-name": "research"}),
    ),
    (
        TrainJobDifference.QUEUE_PATCHES,
        lambda d: d["spec"].update(
            runtimePatches=[
                patch | {"manager": "kueue.x-k8s.io/manager"} for patch in runtime_patch(PATCH)
            ]
        ),
    ),
    (TrainJobDifference.PROCESSES, lambda d: d["spec"]["trainer"].update(numProcPerNode=4)),
    (TrainJobDifference.LABELS, lambda d: d["spec"].update(labels={"team": "a"})),
    (
        TrainJobDifference.MANAGED_BY,
        lambda d: d["spec"].update(managedBy="trainer.kubeflow.org/trainjob-controller"),
    ),
    (TrainJobDifference.UNKNOWN, lambda d: d["spec"].update(templateOverrides=[])),
    (TrainJobDifference.UNKNOWN, lambda d: d["spec"]["trainer"].update(elastic=True)),
    (TrainJobDifference.UNKNOWN, lambda d: d.update(extra=1)),
    (TrainJobDifference.EXPORTED, lambda d: d.update(status={})),
    (TrainJobDifference.EXPORTED, lambda d: d["metadata"].update(uid="1")),
    (
        TrainJobDifference.ADDRESSES,
        lambda d: d["spec"]["trainer"].update(args=["--chief=plain-node-0-0.plain"]),
    ),
]


@pytest.mark.parametrize(
    ("difference", "change"), CASES, ids=[f"{n}-{case[0].name}" for n, case in enumerate(CASES)]
)
def test_what_is_different_is_reported_and_the_job_is_valid(
    difference: TrainJobDifference, change: jobs.Change
) -> None:
    count = [notice.difference for notice in convert().notices].count(difference)
    converted = convert(change)
    assert [notice.difference for notice in converted.notices].count(difference) > count
    assert load.parse_job(converted.document).metadata.name == "plain"


def test_every_difference_is_tried() -> None:
    always = {TrainJobDifference.VARIABLES, TrainJobDifference.RESTARTS, TrainJobDifference.SUCCESS}
    tried = {case[0] for case in CASES} | always | {TrainJobDifference.DEFAULT_SUCCESS}
    assert set(TrainJobDifference) - tried == {
        TrainJobDifference.CONTAINER,
        TrainJobDifference.NETWORK,
    }


def test_defaults_that_are_not_written_are_a_difference() -> None:
    converted = convert(defaults=False)
    assert "successPolicy" not in converted.document["spec"]
    assert TrainJobDifference.DEFAULT_SUCCESS in jobs.differences(converted)


@pytest.mark.parametrize(
    "fields",
    [{"podTemplateOverrides": [NODE | PATCH]}, {"runtimePatches": runtime_patch(PATCH)}],
    ids=["podTemplateOverrides", "runtimePatches"],
)
def test_patches_of_the_pods_that_train_go_into_the_template(fields: dict[str, Any]) -> None:
    converted = convert(lambda d: d["spec"].update(fields))
    assert jobs.differences(converted) == jobs.differences(convert())
    template = jobs.worker(converted.document)["template"]
    assert template["metadata"] == {"labels": {"team": "a"}}
    assert template["spec"]["serviceAccountName"] == "reader"
    assert template["spec"]["volumes"] == [{"name": "data", "emptyDir": {}}]
    [container] = template["spec"]["containers"]
    assert container["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]
    assert container["image"] == "example/plain:1"


def test_of_two_overrides_the_later_one_wins() -> None:
    def twice(document: jobs.Document) -> None:
        first = {
            "nodeSelector": {"zone": "a", "disk": "fast"},
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": "more", "emptyDir": {}}],
            "tolerations": [{"key": "a"}],
        }
        second = {
            "nodeSelector": {"zone": "b"},
            "volumes": [{"name": "data", "hostPath": {"path": "/data"}}],
            "tolerations": [{"key": "b"}],
        }
        document["spec"]["podTemplateOverrides"] = [NODE | {"spec": s} for s in (first, second)]

    pod = jobs.pod(convert(twice).document)
    assert pod["nodeSelector"] == {"zone": "b", "disk": "fast"}
    assert pod["tolerations"] == [{"key": "b"}]
    assert {volume["name"]: sorted(volume) for volume in pod["volumes"]} == {
        "more": ["emptyDir", "name"],
        "data": ["hostPath", "name"],
    }


def test_a_gate_that_kueue_has_set_would_hold_the_pods_back() -> None:
    gates = [{"name": "kueue.x-k8s.io/topology"}, {"name": "example.com/mine"}]
    override = NODE | {"spec": {"schedulingGates": gates}}
    converted = convert(lambda d: d["spec"].update(podTemplateOverrides=[override]))
    assert jobs.pod(converted.document)["schedulingGates"] == [{"name": "example.com/mine"}]
    assert TrainJobDifference.QUEUE_PATCHES in jobs.differences(converted)


def test_a_runtime_passes_and_a_service_of_old_labels_is_reported() -> None:
    runtime = (
        "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainingRuntime\n"
        "spec: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}\n"
    )
    service = "kind: Service\nspec: {selector: {jobset.sigs.k8s.io/jobset-name: plain}}\n"
    result = jobs.run("-", text=f"{TEXT}---\n{runtime}---\n{service}")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.endswith(f"---\n{runtime}---\n{service}")
    assert "stdin: Service without a name\n" in result.stderr
    assert "stdin: TrainingRuntime" not in result.stderr


def test_an_exported_list_is_converted() -> None:
    exported = {"managedBy": "trainer.kubeflow.org/trainjob-controller", "suspend": False}
    listing = {"apiVersion": "v1", "kind": "TrainJobList"}
    items = [plain(lambda d: d["spec"].update(exported)) for _ in range(2)]
    result = jobs.run("-", text=yaml.safe_dump(listing | {"items": items}))
    assert result.exit_code == 0, result.stderr
    converted = yaml.safe_load(result.stdout)
    assert converted["kind"] == "List"
    assert [jobs.policy(job) for job in converted["items"]] == [{"suspend": False}] * 2


def test_suspension_deadline_and_another_manager_are_kept() -> None:
    fields = {"suspend": True, "activeDeadlineSeconds": 60}
    manager = {"managedBy": "kueue.x-k8s.io/multikueue"}
    document = convert(lambda d: d["spec"].update(fields | manager)).document
    assert jobs.policy(document) == fields
    assert document["spec"]["managedBy"] == manager["managedBy"]


def test_labels_of_the_job_win_over_those_of_the_spec() -> None:
    def labelled(document: jobs.Document) -> None:
        document["metadata"]["labels"] = {"team": "a"}
        document["spec"]["labels"] = {"team": "b", "run": "1"}

    assert convert(labelled).document["metadata"]["labels"] == {"team": "a", "run": "1"}


@pytest.mark.parametrize("count", ["auto", 1, "gpu"])
def test_one_process_of_a_node_is_no_difference(count: str | int) -> None:
    converted = convert(lambda d: d["spec"]["trainer"].update(numProcPerNode=count))
    assert TrainJobDifference.PROCESSES not in jobs.differences(converted)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda d: d["spec"]["trainer"].pop("image"),
            "spec.trainer.image: missing; write the image of the runtime, which kubectl get"
            " clustertrainingruntime tensorflow-distributed -o yaml shows",
        ),
        (lambda d: d.pop("spec"), "spec.trainer.image: missing"),
        (
            lambda d: d.update(apiVersion="trainer.kubeflow.org/v2"),
            "apiVersion: received 'trainer.kubeflow.org/v2'",
        ),
        (lambda d: d["spec"].update(trainer=[]), "spec.trainer: received []; write fields"),
        (
            lambda d: d["spec"].update(podTemplateOverrides={}),
            "spec.podTemplateOverrides: received {}; write a list",
        ),
        (
            lambda d: d["spec"]["trainer"].update(numNodes="two"),
            "spec.tfReplicaSpecs.Worker.replicas",
        ),
    ],
)
def test_what_means_nothing_is_refused(change: jobs.Change, sentence: str) -> None:
    result = jobs.run("-", text=yaml.safe_dump(plain(change)))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: stdin: TrainJob plain: {sentence}")


def test_comments_below_spec_are_missed() -> None:
    text = f"# stays{TEXT}".replace("    image:", "    # goes\n    image:")
    result = jobs.run("-", text=text)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("# stays\n")
    assert "note: stdin: the comments in replaced parts are not kept\n" in result.stderr
    assert load.parse_job(yaml.safe_load(result.stdout)).metadata.name == "plain"
