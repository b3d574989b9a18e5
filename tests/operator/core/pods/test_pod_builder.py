"""The manifests of a job's children."""

import dataclasses
import json
from typing import Any

import pytest

from testing.operator import builders
from tfparallel_operator.api import load, names, paths, types
from tfparallel_operator.core import installation, layout, replicas
from tfparallel_operator.core.pods import config, network, ownership
from tfparallel_trainer.contract import job_file

CHIEF = replicas.Replica(types.Role.CHIEF, 0)
WORKER = replicas.Replica(types.Role.WORKER, 1)


def a_pod(
    job: types.TFParallelJob,
    replica: replicas.Replica = WORKER,
    settings: installation.InstallationSettings = builders.SETTINGS,
) -> dict[str, Any]:
    return builders.a_pod(job, replica, settings, attempt=2, replica_attempt=1)


def data_of(
    job: types.TFParallelJob, settings: installation.InstallationSettings = builders.SETTINGS
) -> dict[str, str]:
    """Return the files of a job's ConfigMap."""
    data: dict[str, str] = config.manifest(layout.build(job), settings)["data"]
    return data


def environment(pod: dict[str, Any]) -> dict[str, str]:
    [container] = [c for c in pod["spec"]["containers"] if c["name"] == "tensorflow"]
    return {variable["name"]: variable.get("value") for variable in container["env"]}


def test_children_belong_to_the_job_and_carry_its_labels() -> None:
    job = builders.a_job(chief=1, worker=2)
    children = [
        network.service(layout.build(job)),
        config.manifest(layout.build(job), builders.SETTINGS),
        a_pod(job),
    ]
    for child in children:
        [owner] = child["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == (
            "TFParallelJob",
            "job-uid",
            True,
        )
        assert child["metadata"]["namespace"] == "ns"
        assert ownership.labels(job).items() <= child["metadata"]["labels"].items()


def test_a_pod_is_named_and_labelled_by_role_index_and_attempt() -> None:
    pod = a_pod(builders.a_job(chief=1, worker=2))
    assert pod["metadata"]["name"] == "job-worker-1"
    assert pod["metadata"]["labels"]["tfparallel.dev/replica-role"] == "worker"
    assert pod["metadata"]["labels"]["tfparallel.dev/replica-index"] == "1"
    assert pod["metadata"]["labels"]["tfparallel.dev/attempt"] == "2"
    assert pod["metadata"]["labels"]["tfparallel.dev/replica-attempt"] == "1"
    assert pod["spec"]["hostname"] == "job-worker-1"
    assert pod["spec"]["subdomain"] == "job"
    assert pod["spec"]["restartPolicy"] == "Never"
    assert environment(pod)["TFPARALLEL_ATTEMPT"] == "2"


def test_the_job_file_says_whether_there_is_an_evaluator() -> None:
    trainer = {"trainer": {"epochs": 1, "checkpoint": {"claim": "c"}}}
    without = builders.a_job(trainer=True, spec=trainer, worker=1)
    beside = builders.a_job(trainer=True, spec=trainer, worker=1, evaluator=1)
    for job, expected in ((without, False), (beside, True)):
        content = data_of(job)["job.json"]
        assert job_file.JobFile.model_validate_json(content).evaluator is expected


def test_the_job_file_has_the_mesh() -> None:
    job = builders.a_split_job({"data": -1, "stage": 2, "schedule": "GPipe"}, chief=1, worker=3)
    content = data_of(job)["job.json"]
    read = job_file.JobFile.model_validate_json(content)
    assert read.strategy == job_file.Strategy.MODEL_SPLIT
    assert read.mesh == job.spec.mesh
    assert read.mesh is not None
    assert read.mesh.schedule is job_file.PipelineSchedule.GPIPE
    assert "mesh" not in data_of(builders.a_job(trainer=True, worker=1))["job.json"]


def test_an_evaluator_reads_what_training_writes() -> None:
    trainer = {"trainer": {"epochs": 1, "checkpoint": {"claim": "c"}}}
    job = builders.a_job(trainer=True, spec=trainer, chief=1, evaluator=1)
    chief, evaluator = (
        a_pod(job, replicas.Replica(role, 0)) for role in (types.Role.CHIEF, types.Role.EVALUATOR)
    )
    assert evaluator["spec"]["volumes"] == [
        volume for volume in chief["spec"]["volumes"] if volume["name"] != "tfparallel-token"
    ]
    assert "TFPARALLEL_PROGRESS_URL" not in environment(evaluator)
    assert environment(evaluator)["TFPARALLEL_OUTPUT_DIR"] == "/output/job"


def test_a_custom_command_may_say_why_it_ends() -> None:
    document = builders.manifest(worker=1)
    container = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    worker = replicas.Replica(types.Role.WORKER, 0)
    assert environment(a_pod(load.parse_job(document), worker))["TFPARALLEL_FAILURE_FILE"] == (
        "/dev/termination-log"
    )
    container["terminationMessagePath"] = "/tmp/why"
    pod = a_pod(load.parse_job(document), worker)
    assert environment(pod)["TFPARALLEL_FAILURE_FILE"] == "/tmp/why"


def test_a_replica_knows_how_long_it_may_take_to_end() -> None:
    document = builders.manifest(worker=2)
    usual = environment(a_pod(load.parse_job(document)))
    assert "TFPARALLEL_GRACE_SECONDS" not in usual, "that is Kubernetes' default"
    template = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]
    template["spec"]["terminationGracePeriodSeconds"] = 600
    assert environment(a_pod(load.parse_job(document)))["TFPARALLEL_GRACE_SECONDS"] == "600"


def test_python_orders_sets_alike_in_all_replicas() -> None:
    """The order of a set of texts may decide what a word of a vocabulary means."""
    assert environment(a_pod(builders.a_job(chief=1, worker=2)))["PYTHONHASHSEED"] == "0"
    document = builders.manifest(trainer=True, chief=1, worker=2)
    document["spec"]["trainer"]["seed"] = 7
    seeded = load.parse_job(document)
    for replica in (CHIEF, WORKER):
        assert environment(a_pod(seeded, replica))["PYTHONHASHSEED"] == "7"
    document["spec"]["trainer"]["env"] = [{"name": "PYTHONHASHSEED", "value": "3"}]
    assert environment(a_pod(load.parse_job(document)))["PYTHONHASHSEED"] == "3"


def test_a_template_is_kept_and_never_changed() -> None:
    document = builders.manifest(chief=1, worker=2)
    template = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]
    template["metadata"] = {"labels": {"team": "a"}, "annotations": {"note": "b"}}
    template["spec"]["nodeSelector"] = {"disk": "fast"}
    template["spec"]["containers"][0]["env"] = [{"name": "TF_CONFIG", "value": "mine"}]
    template["spec"]["containers"].append({"name": "sidecar", "image": "s"})
    job = load.parse_job(document)
    before = job.model_dump_json()
    pod = a_pod(job)
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["annotations"] == {"note": "b"}
    assert pod["spec"]["nodeSelector"] == {"disk": "fast"}
    assert pod["spec"]["containers"][1] == {"name": "sidecar", "image": "s"}
    assert environment(pod)["TF_CONFIG"] == "mine"
    assert job.model_dump_json() == before


def test_without_a_template_the_shipped_trainer_runs_restricted() -> None:
    pod = a_pod(builders.a_job(trainer=True, chief=1, worker=2))
    [container] = pod["spec"]["containers"]
    assert container["image"] == "tfparallel/trainer:test"
    assert container["command"] == ["python", "-m", "tfparallel_trainer"]
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert environment(pod)["TFPARALLEL_JOB_FILE"] == "/etc/tfparallel/job/job.json"
    assert environment(pod)["TFPARALLEL_FAILURE_FILE"] == "/dev/termination-log"


def test_secrets_pull_the_trainers_image_unless_the_template_has_some() -> None:
    settings = dataclasses.replace(builders.SETTINGS, trainer_pull_secrets=("ours", "mirror"))
    job = builders.a_job(trainer=True, chief=1, worker=2)
    shipped = a_pod(job, settings=settings)
    assert shipped["spec"]["imagePullSecrets"] == [{"name": "ours"}, {"name": "mirror"}]
    assert "imagePullSecrets" not in a_pod(job)["spec"]
    document = builders.manifest(trainer=True, chief=1)
    container = {"name": "tensorflow"}
    template = {"imagePullSecrets": [{"name": "mine"}], "containers": [container]}
    document["spec"]["tfReplicaSpecs"]["Chief"]["template"] = {"spec": template}
    chosen = a_pod(load.parse_job(document), CHIEF, settings)
    assert chosen["spec"]["imagePullSecrets"] == [{"name": "mine"}]
    container["image"] = "another"
    del template["imagePullSecrets"]
    other = a_pod(load.parse_job(document), CHIEF, settings)
    assert "imagePullSecrets" not in other["spec"]


def test_source_and_checkpoint_are_mounted() -> None:
    document = builders.manifest(trainer=True, chief=1, worker=2)
    document["spec"]["trainer"] |= {
        "source": {"configMap": {"name": "code"}},
        "checkpoint": {"claim": "disk"},
    }
    pod = a_pod(load.parse_job(document))
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    mounts = {m["name"]: m for m in pod["spec"]["containers"][0]["volumeMounts"]}
    assert volumes["tfparallel-source"]["configMap"] == {"name": "code"}
    assert volumes["tfparallel-output"]["persistentVolumeClaim"] == {"claimName": "disk"}
    variables = environment(pod)
    assert variables["TFPARALLEL_SOURCE_DIR"] == mounts["tfparallel-source"]["mountPath"]
    assert variables["TFPARALLEL_OUTPUT_DIR"].startswith(mounts["tfparallel-output"]["mountPath"])
    assert mounts["tfparallel-output"]["readOnly"] is False


def _fields(trainer: job_file.TrainerSpec) -> dict[str, Any]:
    return {name: getattr(trainer, name) for name in job_file.TrainerSpec.model_fields}


def test_checkpoints_in_a_bucket_leave_a_pod_with_its_local_folder() -> None:
    document = builders.manifest(trainer=True, worker=2)
    document["spec"]["trainer"]["checkpoint"] = {"uri": "s3://bucket/runs"}
    job = load.parse_job(document)
    volumes = {volume["name"]: volume for volume in a_pod(job)["spec"]["volumes"]}
    assert volumes["tfparallel-output"] == {"name": "tfparallel-output", "emptyDir": {}}
    content = data_of(job)[config.JOB_FILE_KEY]
    checkpoint = job_file.JobFile.model_validate_json(content).trainer.checkpoint
    assert checkpoint is not None
    assert checkpoint.uri == "s3://bucket/runs"


def test_only_a_job_with_a_bucket_is_told_its_namespace() -> None:
    document = builders.manifest(trainer=True, worker=2)
    for checkpoint, expected in (
        ({"uri": "s3://bucket/runs"}, [document["metadata"].get("namespace", "default")]),
        ({"claim": "c"}, []),
    ):
        document["spec"]["trainer"]["checkpoint"] = checkpoint
        (container,) = a_pod(load.parse_job(document))["spec"]["containers"]
        variables = {variable["name"]: variable.get("value") for variable in container["env"]}
        passed = [value for name, value in variables.items() if name == "TFPARALLEL_JOB_NAMESPACE"]
        assert passed == expected


def test_the_job_file_is_what_the_trainer_reads() -> None:
    job = builders.a_job(trainer=True, chief=1, worker=2)
    data = data_of(job)
    read = job_file.JobFile.model_validate_json(data["job.json"])
    assert job.spec.trainer is not None
    assert read.trainer == job_file.TrainerSpec(**_fields(job.spec.trainer))
    assert read.strategy == "MultiWorkerMirrored"
    assert data["ca.crt"] == "CERTIFICATES"


def test_only_the_coordinator_reports_progress_with_a_token_for_its_job_alone() -> None:
    job = builders.a_job(chief=1, worker=2)
    assert "TFPARALLEL_PROGRESS_URL" not in environment(a_pod(job))
    pod = a_pod(job, CHIEF)
    assert environment(pod)["TFPARALLEL_PROGRESS_URL"] == (
        "https://operator.example/apis/tfparallel.dev/v1alpha1/namespaces/ns/tfparalleljobs/job"
        "/progress"
    )
    [token] = [v["projected"] for v in pod["spec"]["volumes"] if "projected" in v]
    assert token["sources"][0]["serviceAccountToken"]["audience"] == "tfparallel.dev/job-uid"


def test_devices_are_a_limit_of_the_gpu_resource() -> None:
    document = builders.manifest(trainer=True, worker=2)
    document["spec"]["tfReplicaSpecs"]["Worker"]["devices"] = 4
    pod = a_pod(load.parse_job(document))
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "4"}


def test_gpus_get_shared_memory_and_settings() -> None:
    document = builders.manifest(trainer=True, worker=2)
    document["spec"]["tfReplicaSpecs"]["Worker"]["devices"] = 4
    pod = a_pod(load.parse_job(document))
    [container] = pod["spec"]["containers"]
    [volume] = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "tfparallel-shm"]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "4096Mi"}
    mount = {"name": "tfparallel-shm", "mountPath": "/dev/shm", "readOnly": False}
    assert mount in container["volumeMounts"]
    assert environment(pod)["NCCL_DEBUG"] == "WARN"
    assert environment(pod)["TF_GPU_THREAD_MODE"] == "gpu_private"


@pytest.mark.parametrize(
    ("limits", "size"),
    [
        ({"nvidia.com/gpu": 1, "memory": "1Gi"}, "512Mi"),
        ({"nvidia.com/gpu": "2", "memory": "64Gi"}, "2048Mi"),
        ({"nvidia.com/mig-1g.5gb": 1}, "1024Mi"),
        ({"amd.com/gpu": 2}, "2048Mi"),
        ({"nvidia.com/gpu.shared": "2e0"}, "2048Mi"),
        ({"nvidia.com/mig-1g.5gb.shared": 1}, "1024Mi"),
        ({"habana.ai/gaudi": 8}, "8192Mi"),
        ({"gpu.intel.com/i915": 1}, "1024Mi"),
        ({"gpu.intel.com/xe": 1, "gpu.intel.com/millicores": 500}, "1024Mi"),
        ({"example.com/gpu": 1}, "1024Mi"),
        ({"deviceclass.resource.kubernetes.io/gpu.nvidia.com": 2}, "2048Mi"),
        ({"nvidia.com/gpu": "9" * 60}, "1048576Mi"),
        ({"cpu": 2}, None),
        ({"nvidia.com/gpu": 0}, None),
        ({"nvidia.com/gpumem": 3000}, None),
        ({"gpu.intel.com/i915_monitoring": 1}, None),
        ({"gpu": 1}, None),
    ],
)
def test_shared_memory_follows_the_gpus_and_leaves_half_of_the_memory(
    limits: dict[str, Any], size: str | None
) -> None:
    document = builders.manifest(worker=2)
    [container] = containers_of(document)
    container["resources"] = {"limits": limits}
    volumes = a_pod(load.parse_job(document))["spec"].get("volumes", [])
    assert [volume["emptyDir"]["sizeLimit"] for volume in volumes] == (
        [] if size is None else [size]
    )


@pytest.mark.parametrize(
    ("resources", "size"),
    [
        ({"claims": [{"name": "gpu"}]}, "8192Mi"),
        ({"claims": [{"name": "gpu", "request": "two"}], "limits": {"memory": "6Gi"}}, "3072Mi"),
        ({"claims": [{"name": "network"}], "limits": {"nvidia.com/gpu": 1}}, "1024Mi"),
    ],
)
def test_claims_of_devices_get_shared_memory_and_settings(
    resources: dict[str, Any], size: str
) -> None:
    document = builders.manifest(worker=2)
    [container] = containers_of(document)
    container["resources"] = resources
    names_of_claims = [claim["name"] for claim in resources["claims"]]
    template = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]
    template["spec"]["resourceClaims"] = [
        {"name": name, "resourceClaimTemplateName": name} for name in names_of_claims
    ]
    pod = a_pod(load.parse_job(document))
    [volume] = pod["spec"]["volumes"]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": size}
    assert environment(pod)["NCCL_DEBUG"] == "WARN"


def test_what_a_template_says_of_shared_memory_and_nccl_stays() -> None:
    document = builders.manifest(worker=2)
    [container] = containers_of(document)
    mounts = [{"name": "mine", "mountPath": "/dev/shm/"}]
    container.update(resources={"limits": {"nvidia.com/gpu": 1}}, volumeMounts=mounts)
    container["env"] = [{"name": "NCCL_DEBUG", "value": "INFO"}]
    pod = a_pod(load.parse_job(document))
    assert "volumes" not in pod["spec"]
    assert environment(pod)["NCCL_DEBUG"] == "INFO"


def containers_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    template = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]
    containers: list[dict[str, Any]] = template["spec"]["containers"]
    return containers


def test_the_added_chief_is_like_a_worker_without_devices() -> None:
    worker = {"replicas": 2, "devices": 1, "template": {"spec": {"nodeSelector": {"a": "b"}}}}
    spec = {"tfReplicaSpecs": {"Worker": worker, "PS": {}}, "trainer": {"epochs": 1}}
    job = builders.a_job(spec=spec)
    (chief, first, *_) = [
        builders.a_pod(job, replica)["spec"] for replica in layout.build(job).all_replicas
    ]
    assert chief["nodeSelector"] == first["nodeSelector"] == {"a": "b"}
    assert names.GPU_RESOURCE in first["containers"][0]["resources"]["limits"]
    assert names.GPU_RESOURCE not in str(chief)


def test_the_trainer_of_a_template_keeps_its_image_command_and_port() -> None:
    document = builders.manifest(trainer=True, worker=2)
    port = {"name": names.PORT_NAME, "containerPort": 4000}
    container = {"name": "tensorflow", "image": "mine", "command": ["train"], "ports": [port]}
    template = {"spec": {"containers": [{"name": "proxy", "image": "p"}, container]}}
    document["spec"]["tfReplicaSpecs"]["Worker"]["template"] = template
    pod = a_pod(load.parse_job(document))
    proxy, trainer = pod["spec"]["containers"]
    assert proxy == {"name": "proxy", "image": "p"}
    assert (trainer["image"], trainer["command"]) == ("mine", ["train"])
    assert trainer["ports"] == [port]
    assert trainer["workingDir"] == paths.WORKSPACE_DIR
    assert "securityContext" not in trainer
    assert "securityContext" not in pod["spec"]


def test_the_shared_cluster_of_a_chief_alone_counts_no_workers() -> None:
    settings = dataclasses.replace(builders.SETTINGS, share_above=0)
    cases: list[tuple[dict[str, Any], str | None]] = [
        ({"chief": 1}, None),
        ({"chief": 1, "worker": 2}, "2"),
    ]
    for roles, workers in cases:
        job = builders.a_job(trainer=True, **roles)
        pod = builders.a_pod(job, CHIEF, settings)
        assert environment(pod).get("TFPARALLEL_WORKERS") == workers


def test_without_an_authority_progress_goes_to_the_endpoint_without_one() -> None:
    settings = dataclasses.replace(builders.SETTINGS, progress_ca=None)
    job = builders.a_job(trainer=True, chief=1)
    assert sorted(data_of(job, settings)) == [config.JOB_FILE_KEY, config.SPEC_KEY]
    variables = environment(builders.a_pod(job, CHIEF, settings))
    assert variables["TFPARALLEL_PROGRESS_URL"].startswith("https://operator.example/")
    assert "TFPARALLEL_PROGRESS_CA_FILE" not in variables


def test_every_manifest_is_plain_json() -> None:
    job = builders.a_job(trainer=True, chief=1, worker=2)
    for built in (
        network.service(layout.build(job)),
        config.manifest(layout.build(job), builders.SETTINGS),
        a_pod(job),
    ):
        assert json.loads(json.dumps(built)) == built
