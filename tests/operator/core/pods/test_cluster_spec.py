"""TF_CONFIG is right for every role, under TensorFlow's own rules."""

import json
from typing import Any

import pytest

from testing.operator import builders
from tfparallel.backends.local import container_variables
from tfparallel.job_source import key_maps
from tfparallel_operator.api import job_status, load, names, pods, types
from tfparallel_operator.core import installation, layout, observation, replicas
from tfparallel_operator.core.pods import cluster_spec, config, pod_builder

ALLOWED = {"chief", "worker", "ps", "evaluator"}


def configs(**job: Any) -> dict[str, dict[str, Any]]:
    plan = layout.build(builders.a_job(**job))
    return {
        replica.name: json.loads(cluster_spec.tf_config(plan, replica))
        for replica in plan.all_replicas
    }


@pytest.mark.parametrize(
    "roles",
    [
        {"worker": 1},
        {"worker": 3},
        {"chief": 1, "worker": 2},
        {"master": 1, "worker": 2},
        {"chief": 1, "worker": 2, "ps": 2, "evaluator": 1},
        {"worker": 2, "evaluator": 1},
    ],
)
def test_the_rules_of_tensorflow_hold_for_every_replica(roles: dict[str, int]) -> None:
    for name, tf_config in configs(**roles).items():
        cluster, task = tf_config["cluster"], tf_config["task"]
        assert set(cluster) <= ALLOWED
        assert len(cluster.get("chief", [])) <= 1
        assert ("evaluator" in cluster) is (task["type"] == "evaluator")
        own_address = cluster[task["type"]][task["index"]]
        assert own_address == f"job-{name}.job:2222"


def test_all_training_replicas_see_the_same_cluster() -> None:
    tf_configs = configs(chief=1, worker=2, ps=1, evaluator=1)
    assert tf_configs["chief-0"]["cluster"] == {
        "chief": ["job-chief-0.job:2222"],
        "worker": ["job-worker-0.job:2222", "job-worker-1.job:2222"],
        "ps": ["job-ps-0.job:2222"],
    }
    assert (
        tf_configs["chief-0"]["cluster"]
        == tf_configs["worker-1"]["cluster"]
        == tf_configs["ps-0"]["cluster"]
    )
    assert tf_configs["evaluator-0"]["cluster"]["evaluator"] == ["job-evaluator-0.job:2222"]


def test_a_master_is_the_chief() -> None:
    tf_configs = configs(master=1, worker=1)
    assert tf_configs["master-0"]["task"] == {"type": "chief", "index": 0}
    assert tf_configs["worker-0"]["cluster"]["chief"] == ["job-master-0.job:2222"]


def test_the_trainer_with_servers_gets_a_chief() -> None:
    tf_configs = configs(trainer=True, worker=2, ps=1)
    assert list(tf_configs) == ["chief-0", "worker-0", "worker-1", "ps-0"]
    assert tf_configs["ps-0"]["cluster"]["chief"] == ["job-chief-0.job:2222"]
    assert tf_configs["chief-0"]["task"] == {"type": "chief", "index": 0}
    assert next(iter(configs(trainer=True, master=1, worker=1, ps=1))) == "master-0"
    assert "chief-0" not in configs(worker=2, ps=1), "people's own scripts choose their roles"


def test_dynamic_workers_know_themselves_and_the_servers() -> None:
    tf_configs = configs(chief=1, worker=3, ps=2, spec={"enableDynamicWorker": True})
    servers = ["job-ps-0.job:2222", "job-ps-1.job:2222"]
    assert tf_configs["worker-2"]["cluster"] == {
        "chief": ["job-chief-0.job:2222"],
        "worker": {"2": "job-worker-2.job:2222"},
        "ps": servers,
    }
    assert tf_configs["ps-1"]["cluster"] == {"chief": ["job-chief-0.job:2222"], "ps": servers}
    assert len(tf_configs["chief-0"]["cluster"]["worker"]) == 3


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_built_once_for_all_pods_is_what_each_would_have(dynamic: bool) -> None:
    spec = {"enableDynamicWorker": dynamic}
    job = builders.a_job(chief=1, worker=2, ps=1, evaluator=1, spec=spec)
    plan = layout.build(job)
    builder = pod_builder.PodBuilder(plan, builders.SETTINGS, job_status.JobStatus(attempt=1))
    manifests = [builder.build(replica) for replica in plan.all_replicas]
    assert manifests == [builders.a_pod(job, replica) for replica in plan.all_replicas]


def test_the_port_named_tfjob_port_is_used() -> None:
    document = builders.manifest(chief=1, worker=1)
    container = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    document["spec"]["tfReplicaSpecs"]["Worker"]["template"] = {
        "spec": {
            "containers": [
                {"name": "sidecar", "ports": [{"name": "tfjob-port", "containerPort": 1}]},
                {**container, "ports": [{"name": "tfjob-port", "containerPort": 4000}]},
            ]
        }
    }
    job = load.parse_job(document)
    plan = layout.build(job)
    cluster_config = json.loads(cluster_spec.tf_config(plan, plan.all_replicas[0]))
    assert cluster_config["cluster"]["worker"] == ["job-worker-0.job:4000"]
    assert cluster_config["cluster"]["chief"] == ["job-chief-0.job:2222"]


def is_shared(job: types.TFParallelJob, above: int | None = installation.SHARE_ABOVE) -> bool:
    return cluster_spec.is_shared(layout.build(job), above)


@pytest.mark.parametrize("trainer", [True, False])
def test_the_cluster_is_shared_beyond_64_replicas(trainer: bool) -> None:
    for workers, shared in ((64, False), (65, True)):
        job = builders.a_job(trainer=trainer, worker=workers)
        assert is_shared(job) is shared
        assert not is_shared(job, None)
    dynamic = {"enableDynamicWorker": True}
    assert not is_shared(builders.a_job(trainer=trainer, worker=65, spec=dynamic))


@pytest.mark.parametrize("bound", ["minReplicas", "maxReplicas"])
def test_a_command_whose_workers_may_come_and_go_shares_no_cluster(bound: str) -> None:
    document = builders.manifest(worker=70)
    document["spec"]["tfReplicaSpecs"]["Worker"][bound] = 70
    assert not is_shared(load.parse_job(document))


def test_the_shared_file_has_every_worker_that_may_come() -> None:
    document = builders.manifest(trainer=True, chief=1, worker=2)
    workers = document["spec"]["tfReplicaSpecs"]["Worker"]
    workers["maxReplicas"] = 70
    bounded = load.parse_job(document)
    assert is_shared(bounded)
    cluster = json.loads(cluster_spec.shared(layout.build(bounded)))
    assert cluster["chief"] == ["job-chief-0.job:2222"]
    assert cluster["worker"] == [f"job-worker-{index}.job:2222" for index in range(70)]
    workers.update(maxReplicas=None, minReplicas=1, replicas=100)
    assert not is_shared(load.parse_job(document))


def test_a_pod_of_a_large_job_has_its_task_alone() -> None:
    spec = {"trainer": {"epochs": 1, "checkpoint": {"claim": "c"}}}
    job = builders.a_job(trainer=True, spec=spec, worker=70, evaluator=1)
    plan = layout.build(job)
    cluster = config.manifest(plan, builders.SETTINGS)["data"]["cluster.json"]
    for replica in (replicas.Replica(types.Role.WORKER, 69), plan.all_replicas[-1]):
        [container] = builders.a_pod(job, replica)["spec"]["containers"]
        environment = {variable["name"]: variable["value"] for variable in container["env"]}
        task = {"type": replica.role.task_type, "index": replica.index}
        assert json.loads(environment["TF_CONFIG"]) == {"task": task}
        assert environment["TFPARALLEL_CLUSTER_FILE"] == "/etc/tfparallel/job/cluster.json"
        assert environment["TFPARALLEL_WORKERS"] == "70"
    # What the trainer makes of it is what each would have had in its variable.
    assert list(json.loads(cluster)) == ["worker", "evaluator"]


def test_a_command_finds_the_whole_cluster_in_its_variable() -> None:
    job = builders.a_job(chief=1, worker=70, ps=2, evaluator=1)
    plan = layout.build(job)
    config_map = config.manifest(plan, builders.SETTINGS)
    objects = {kind: key_maps.of_kind(kind, [config_map]) for kind in key_maps.ObjectKind}
    sources = container_variables.Sources(objects, {})
    for replica in plan.all_replicas:
        [container] = builders.a_pod(job, replica)["spec"]["containers"]
        resolved = container_variables.resolve(pods.Container.model_validate(container), sources)
        assert resolved["TF_CONFIG"] == cluster_spec.tf_config(plan, replica)
        is_evaluator = replica.role is types.Role.EVALUATOR
        assert (len(json.dumps(container)) < 2_000) is not is_evaluator


@pytest.mark.parametrize("trainer", [True, False])
def test_a_pod_that_has_yet_to_start_keeps_its_cluster(trainer: bool) -> None:
    document = builders.manifest(trainer=trainer, worker=70)
    before = layout.build(load.parse_job(document))
    document["metadata"]["generation"] = 2
    document["spec"]["tfReplicaSpecs"]["Worker"]["minReplicas"] = 1
    edited = layout.build(load.parse_job(document))
    assert not cluster_spec.is_shared(edited, installation.SHARE_ABOVE)
    fingerprint = config.fingerprint(before, builders.SETTINGS)
    config_map = observation.Config("job-tfparallel", uid="config", fingerprint=fingerprint)
    [change] = config.changes(edited, builders.SETTINGS, config_map)
    assert config.CLUSTER_KEY not in change.fields["data"]


@pytest.mark.parametrize("trainer", [True, False])
def test_stored_bytes_grow_with_the_number_of_replicas_and_not_with_its_square(
    trainer: bool,
) -> None:
    def stored(workers: int) -> int:
        plan = layout.build(builders.a_job(trainer=trainer, worker=workers))
        builder = pod_builder.PodBuilder(plan, builders.SETTINGS, job_status.JobStatus(attempt=1))
        manifests = [config.manifest(plan, builders.SETTINGS)]
        manifests += [builder.build(replica) for replica in plan.all_replicas]
        return sum(len(json.dumps(manifest)) for manifest in manifests)

    assert stored(1000) / stored(100) == pytest.approx(10, rel=0.05)


def test_a_cluster_that_no_variable_can_hold_is_refused_with_a_remedy() -> None:
    world = builders.World(builders.a_job(worker=5000))
    world.run_until_quiet()
    assert world.pods == {}
    condition = world.condition(names.ConditionType.FAILED)
    assert condition.reason == names.Reason.INVALID_SPEC
    assert "train with spec.trainer, whose replicas share a file" in condition.message
    assert cluster_spec.excess(layout.build(builders.a_job(worker=2500))) == 0


def test_thousands_of_replicas_fit_one_environment_variable() -> None:
    job = builders.a_job(worker=2500)
    text = cluster_spec.tf_config(layout.build(job), replicas.Replica(types.Role.WORKER, 0))
    assert len("TF_CONFIG=") + len(text) < 131_071


def test_a_variable_may_be_as_long_as_linux_takes_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = builders.a_job(worker=3)
    last = replicas.Replica(types.Role.WORKER, 2)
    length = len(f"TF_CONFIG={cluster_spec.tf_config(layout.build(job), last)}")
    for longest, excess in ((length, 0), (length - 1, 1)):
        monkeypatch.setattr(cluster_spec, "LONGEST_VARIABLE", longest)
        assert cluster_spec.excess(layout.build(job)) == excess
