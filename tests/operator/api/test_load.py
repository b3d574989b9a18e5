"""What a person may write wrong, and the sentence that says what to change."""

import copy
from typing import Any

import pytest

from testing.operator import builders, objects, spec_changes
from tfparallel_operator.api import job_status, load, names, types, yaml_documents
from tfparallel_trainer.contract import progress

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
BAD: list[tuple[str, spec_changes.Change, str]] = [
    (
        "other API version",
        lambda d: d.update(apiVersion="kubeflow.org/v1"),
        "apiVersion: received 'kubeflow.org/v1'; write tfparallel.dev/v1alpha1",
    ),
    (
        "unknown role",
        lambda d: d["spec"]["tfReplicaSpecs"].update(worker={}),
        "spec.tfReplicaSpecs.worker: received 'worker'",
    ),
    (
        "no replicas",
        lambda d: spec_changes.roles(d)["Worker"].update(replicas=0),
        "spec.tfReplicaSpecs.Worker.replicas: received 0",
    ),
    (
        "unknown field",
        lambda d: d["spec"].update(stratgy="Mirrored"),
        "spec.stratgy: unknown field",
    ),
    ("no spec", lambda d: d.pop("spec"), "spec: missing; it is required"),
    ("no roles", lambda d: d["spec"].update(tfReplicaSpecs={}), "spec.tfReplicaSpecs"),
    (
        "epochs and steps",
        lambda d: d["spec"]["trainer"].update(steps=5),
        "give either epochs or steps; both is given",
    ),
    (
        "no length",
        lambda d: d["spec"]["trainer"].pop("epochs"),
        "give either epochs or steps; neither is given",
    ),
    (
        "state in two places",
        lambda d: d["spec"]["trainer"].update(checkpoint={"claim": "c", "uri": "s3://b"}),
        "spec.trainer.checkpoint: give either claim or uri; both is given",
    ),
    (
        "state in no place",
        lambda d: d["spec"]["trainer"].update(checkpoint={}),
        "spec.trainer.checkpoint: give either claim or uri; neither is given",
    ),
    (
        "state on a web server",
        lambda d: d["spec"]["trainer"].update(checkpoint={"uri": "https://b/c"}),
        "uri is 'https://b/c': give s3://BUCKET/PREFIX or gs://BUCKET/PREFIX, or give claim",
    ),
    (
        "state in no bucket",
        lambda d: d["spec"]["trainer"].update(checkpoint={"uri": "s3:///prefix"}),
        "uri is 's3:///prefix': give s3://BUCKET/PREFIX",
    ),
    (
        "an evaluator without anything to read",
        lambda d: d["spec"]["tfReplicaSpecs"].update(Evaluator={}),
        "the evaluator reads checkpoints: give trainer.checkpoint, or remove Evaluator",
    ),
    (
        "a bound of staleness where nothing is stale",
        lambda d: d["spec"]["trainer"].update(maxStaleness=2),
        "trainer.maxStaleness bounds asynchronous training, which needs servers",
    ),
    (
        "a TPU over many",
        lambda d: d["spec"].update(strategy="TPU"),
        "strategy TPU drives a whole TPU from one replica",
    ),
]


@pytest.mark.parametrize(
    ("change", "sentence"), [case[1:] for case in BAD], ids=[c[0] for c in BAD]
)
def test_a_wrong_manifest_is_refused_with_a_sentence(
    change: spec_changes.Change, sentence: str
) -> None:
    document = builders.manifest(trainer=True, chief=1, worker=2)
    change(document)
    with pytest.raises(load.SpecError) as refused:
        load.parse_job(document)
    assert any(sentence in problem for problem in refused.value.problems), refused.value.problems


def test_every_problem_is_named_at_once() -> None:
    document = builders.manifest(trainer=True, chief=1, worker=2)
    document["spec"]["oops"] = 1
    document["spec"]["trainer"]["epochs"] = -1
    with pytest.raises(load.SpecError) as refused:
        load.parse_job(document)
    assert len(refused.value.problems) == 2


def test_a_template_needs_the_container_that_trains() -> None:
    document = builders.manifest(worker=1)
    template = spec_changes.roles(document)["Worker"]["template"]
    template["spec"]["containers"][0]["name"] = "main"
    with pytest.raises(load.SpecError, match=r"received \['main'\]; name the container"):
        load.parse_job(document)


@pytest.mark.parametrize("trainer", [True, False])
def test_a_template_has_one_container_that_trains(trainer: bool) -> None:
    document = builders.manifest(trainer=trainer, worker=1)
    containers = [{"name": names.CONTAINER, "image": "a"}] * 2
    spec_changes.roles(document)["Worker"]["template"] = {"spec": {"containers": containers}}
    with pytest.raises(load.SpecError, match="name only one container 'tensorflow'"):
        load.parse_job(document)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "job.yaml:1: not YAML"),
        ("a:\n  b: {{ .Values.b }}", "job.yaml:2: a template, not YAML yet; render it first"),
        ("just words", "job.yaml: expected fields such as apiVersion and kind"),
        ("kind: TFJob", "job.yaml: expected kind 'TFParallelJob', received 'TFJob'"),
        ("", "job.yaml: expected kind 'TFParallelJob', received nothing"),
        ("kind: TFParallelJob\n---\nkind: TFParallelJob", "holds 2 jobs"),
    ],
)
def test_a_file_that_holds_no_job_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(load.SpecError, match=sentence):
        yaml_documents.find_job(yaml_documents.parse(text, "job.yaml"), "job.yaml")


def test_defaults_are_filled_in_and_the_document_is_left_alone() -> None:
    document = builders.manifest(trainer=True, chief=1, worker=2)
    del document["spec"]["tfReplicaSpecs"]["Chief"]["replicas"]
    before = copy.deepcopy(document)
    job = load.parse_job(document)
    assert job.spec.tf_replica_specs[types.Role.CHIEF].replicas == 1
    assert job.spec.run_policy.backoff_limit == 3
    assert job.spec.run_policy.clean_pod_policy.value == "Running"
    assert document == before


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ({"spec": "x"}, "template.spec: received 'x'; write fields"),
        ({"spec": {"containers": ["x"]}}, "containers[0]: received 'x'; write fields"),
        ({"spec": {"containers": [{"name": "tensorflow", "env": None}]}}, "env: received None"),
        (
            {"spec": {"containers": [{"name": "tensorflow", "args": [1]}]}},
            "args[0]: received 1; put",
        ),
        ({"metadata": {"labels": {"a": 1}}}, "metadata.labels.a: received 1; put it in quotes"),
        ({"spec": {"affinity": True}}, "spec.affinity: received True"),
        (
            {"spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [1]}}}}},
            f"affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[0]: received 1; write fields",
        ),
        ({"spec": {"tolerations": {}}}, "spec.tolerations: write a list"),
        ({"spec": {"schedulingGates": [1]}}, "spec.schedulingGates[0]: received 1"),
        ({"spec": {"nodeSelector": {"a": 1}}}, "spec.nodeSelector.a: received 1; put it in quotes"),
    ],
)
def test_a_template_of_wrong_types_is_refused_with_or_without_the_trainer(
    template: dict[str, Any], sentence: str
) -> None:
    for trainer in (True, False):
        document = builders.manifest(trainer=trainer, worker=1)
        spec_changes.roles(document)["Worker"]["template"] = template
        with pytest.raises(load.SpecError) as refused:
            load.parse_job(document)
        assert any(sentence in problem for problem in refused.value.problems), refused.value


@pytest.mark.parametrize("strategy", ["Custom", "TPU"])
def test_servers_belong_to_one_strategy(strategy: str) -> None:
    document = builders.manifest(trainer=True, worker=1, ps=1)
    document["spec"]["strategy"] = strategy
    with pytest.raises(load.SpecError, match="only strategy ParameterServer uses servers"):
        load.parse_job(document)


@pytest.mark.parametrize(
    ("containers", "devices"),
    [
        ([{"name": "proxy", "resources": {"limits": {names.GPU_RESOURCE: 7}}}], 1),
        ([{"name": "proxy"}, {"name": "tensorflow"}], 1),
        ([{"name": "tensorflow", "resources": {"limits": {names.GPU_RESOURCE: 2}}}], 2),
        ([{"name": "tensorflow", "resources": {"limits": {"amd.com/gpu": "4"}}}], 4),
        ([{"name": "tensorflow", "resources": {"limits": {"nvidia.com/mig-1g.5gb": 2}}}], 1),
    ],
)
def test_devices_are_those_of_the_container_that_trains(
    containers: list[dict[str, Any]], devices: int
) -> None:
    spec = types.ReplicaSpec(template={"spec": {"containers": containers}})
    assert load.devices_of(spec) == devices
    assert load.gpus_of(spec) == (devices if devices > 1 else 0)


def test_the_one_job_of_a_file_is_picked_from_other_objects() -> None:
    text = "kind: ConfigMap\n---\n{kind: List, items: [{kind: Secret},"
    text += "{kind: TFParallelJob, spec: {}}]}"
    documents = yaml_documents.parse_objects(text, "job.yaml")
    assert [item["kind"] for item in documents] == ["ConfigMap", "Secret", "TFParallelJob"]
    assert yaml_documents.find_job(documents, "job.yaml")["spec"] == {}


def test_a_template_knows_the_container_that_trains_and_the_others() -> None:
    containers = [{"name": "proxy"}, {"name": "tensorflow", "image": "i"}]
    template = {"spec": {"containers": containers, "initContainers": [{"name": "fetch"}]}}
    spec = load.parse_template(template).spec
    assert spec.trains.name == "tensorflow"
    assert spec.others == ["fetch", "proxy"]


def test_a_status_shows_a_report_with_its_placement_apart() -> None:
    placement = {
        "mesh": {
            "data": 2,
            "stage": 1,
            "spatial": 1,
            "tensor": 1,
            "microbatches": 1,
            "schedule": "GPipe",
            "auto": False,
            "shardOptimizer": False,
            "recompute": False,
            "cuts": [],
        },
        "reasons": [],
        "stages": [],
    }
    report = progress.Report.model_validate({"step": 4, "totalSteps": 10, "placement": placement})
    shown, placed, verified, separate = job_status.of_report(report, builders.START)
    assert (verified, separate) == (None, None)
    assert shown is not None
    assert (shown.step, shown.total_steps, shown.last_update_time) == (4, 10, builders.START)
    assert placed is not None
    assert placed.mesh.data == 2
    plain = report.model_copy(update={"placement": None})
    assert job_status.of_report(plain, builders.START).placement is None


@pytest.mark.parametrize(
    ("field", "entry", "sentence"),
    [
        ("env", {"name": "A", "value": 3}, "env[0].value: received 3; put it in quotes"),
        (
            "volumes",
            {"name": "a", "mountPath": "/a", "claim": "a", "readOnly": "yes"},
            "volumes[0].readOnly: received 'yes'; write true or false",
        ),
        ("imagePullSecrets", {"name": "a"}, "imagePullSecrets[0]"),
        ("env", {"name": "A", "values": "3"}, "env[0].values: unknown field"),
    ],
)
def test_entries_of_a_wrong_type_are_named(
    field: str, entry: dict[str, Any], sentence: str
) -> None:
    document = builders.manifest(trainer=True, worker=1)
    document["spec"]["trainer"][field] = [entry]
    with pytest.raises(load.SpecError) as caught:
        load.parse_job(document)
    assert caught.value.problems[0].startswith(f"spec.trainer.{sentence}")


@pytest.mark.parametrize(
    "report", [{"step": 10**18}, {"step": 1, "metrics": {"\x1b": "1"}}, {"step": "soon"}, 7]
)
def test_a_stored_report_outside_of_the_limits_keeps_no_job_from_being_read(
    report: object,
) -> None:
    job = objects.job()
    job["status"] = {"attempt": 3, "progress": report, "placement": report}
    status = load.read_job(job).status
    assert (status.attempt, status.progress, status.placement) == (3, None, None)
    job["status"]["attempt"] = "many"
    with pytest.raises(load.StatusError):
        load.read_job(job)
