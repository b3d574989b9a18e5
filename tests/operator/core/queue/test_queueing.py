"""Jobs in a queue of Kueue: what waits, and what runs where once it is admitted."""

from testing.operator import builders, queues
from tfparallel_operator.api import load, names
from tfparallel_operator.core import observation
from tfparallel_operator.core.queue import workload


def test_a_job_in_a_queue_has_a_workload_and_no_pod_before_it_is_admitted() -> None:
    world = queues.queued_world(chief=1, worker=3, ps=2)
    [manifest] = world.manifests
    assert (manifest["apiVersion"], manifest["kind"]) == ("kueue.x-k8s.io/v1beta2", "Workload")
    assert manifest["metadata"]["name"] == "tfparalleljob-job"
    assert manifest["metadata"]["labels"][names.LABEL_JOB_UID] == "job-uid"
    assert manifest["metadata"]["ownerReferences"][0]["uid"] == "job-uid"
    assert manifest["spec"]["queueName"] == "research"
    counts = {podset["name"]: podset["count"] for podset in manifest["spec"]["podSets"]}
    assert counts == {"chief": 1, "worker": 3, "ps": 2}
    assert not world.pods
    assert builders.truth(world, queues.ADMITTED) == ("False", "JobQueued")
    assert builders.state_of(world) is names.State.PENDING
    assert world.status.start_time is None


def test_its_templates_say_what_decides_about_quota_and_nothing_of_an_attempt() -> None:
    document = builders.manifest(trainer=True, worker=2)
    document["metadata"]["labels"] = {names.LABEL_QUEUE: "research"}
    worker = document["spec"]["tfReplicaSpecs"]["Worker"]
    worker["devices"] = 4
    worker["template"] = {
        "metadata": {"labels": {"team": "vision"}},
        "spec": {"nodeSelector": {"zone": "a"}, "priorityClassName": "high"},
    }
    world = builders.World(load.parse_job(document), settings=queues.QUEUES)
    world.run_until_quiet()
    [pod_set] = world.manifests[0]["spec"]["podSets"]
    spec = pod_set["template"]["spec"]
    assert spec["nodeSelector"] == {"zone": "a"}
    [container] = spec["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "4"}}
    assert set(container) == {"name", "image", "resources"}
    assert pod_set["template"]["metadata"]["labels"]["team"] == "vision"
    assert names.LABEL_ATTEMPT not in pod_set["template"]["metadata"]["labels"]
    reference = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"}
    assert world.manifests[0]["spec"]["priorityClassRef"] == reference


def test_kueues_priority_class_wins_over_that_of_pods() -> None:
    world = queues.queued_world({names.LABEL_WORKLOAD_PRIORITY: "urgent"})
    spec = world.manifests[0]["spec"]
    reference = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "urgent"}
    assert spec["priorityClassRef"] == reference


def test_why_it_waits_is_said_in_kueues_words() -> None:
    world = queues.queued_world()
    assert queues.message_of(world) == "queue research: Kueue has not looked at it yet"
    queues.set_conditions(
        world, ("QuotaReserved", "False", "Pending", "insufficient unused quota for cpu")
    )
    assert queues.message_of(world) == (
        "queue research: Pending: insufficient unused quota for cpu. Wait until other jobs of the"
        " queue end, ask for less, or have its quota raised."
    )
    told_before = len(world.events)
    queues.set_conditions(
        world,
        ("QuotaReserved", "True", "QuotaReserved", ""),
        pending_checks=("provisioning: 2 of 3 nodes",),
    )
    assert queues.message_of(world) == "queue research: provisioning: 2 of 3 nodes"
    assert len(world.events) == told_before == 1
    assert not world.pods


def test_once_admitted_its_pods_run_where_the_quota_is() -> None:
    world = queues.queued_world()
    queues.admit(world)
    assert builders.truth(world, queues.ADMITTED) == ("True", "JobAdmitted")
    assert queues.message_of(world) == "admitted by ClusterQueue gpus"
    assert world.status.attempt == 1
    assert world.status.start_time == world.now
    assert len(world.pods) == 3
    for pod in queues.pod_manifests(world):
        assert pod["spec"]["nodeSelector"] == {"cloud.example/spot": "true"}
        assert pod["spec"]["tolerations"] == [{"key": "spot", "operator": "Exists"}]
        assert "schedulingGates" not in pod["spec"]
        role = pod["metadata"]["labels"][names.LABEL_ROLE]
        assert pod["metadata"]["labels"][names.LABEL_POD_SET] == role
        assert pod["metadata"]["annotations"][names.ANNOTATION_WORKLOAD] == "tfparalleljob-job"


def test_what_admission_checks_add_comes_to_the_pods() -> None:
    world = queues.queued_world()
    update = {
        "name": "worker",
        "labels": {"l": "1"},
        "annotations": {"a": "2"},
        "nodeSelector": {"pool": "p"},
        "tolerations": [{"key": "pool"}, {"key": "spot", "operator": "Exists"}],
    }
    queues.admit(world, updates=(update,))
    for pod in queues.pod_manifests(world):
        assert pod["metadata"]["labels"]["l"] == "1"
        assert pod["metadata"]["annotations"]["a"] == "2"
        assert pod["spec"]["nodeSelector"] == {"cloud.example/spot": "true", "pool": "p"}
        assert pod["spec"]["tolerations"] == [
            {"key": "spot", "operator": "Exists"},
            {"key": "pool"},
        ]


def test_admitted_without_a_flavor_its_pods_run_anywhere() -> None:
    world = queues.queued_world()
    queues.admit(world, flavors=())
    assert len(world.pods) == 3
    for pod in queues.pod_manifests(world):
        assert not {"nodeSelector", "tolerations"} & pod["spec"].keys()


def test_a_workload_that_waits_gives_back_what_nobody_has_taken() -> None:
    change = workload.release_quota(queues.workload_of(queues.queued_world()), builders.START)
    reasons = {
        condition["type"]: condition["reason"]
        for condition in change.fields["status"]["conditions"]
    }
    assert reasons["QuotaReserved"] == "Pending"
    assert "Requeued" not in reasons


def test_pods_that_kueue_places_itself_wait_for_their_place() -> None:
    world = queues.queued_world()
    queues.admit(world, placed=True)
    assert all(
        pod["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/topology"}]
        for pod in queues.pod_manifests(world)
    )


def test_on_one_machine_nobody_queues() -> None:
    world = queues.queued_world()
    world = builders.World(world.job.model_copy(update={"status": builders.a_job(worker=1).status}))
    world.run_until_quiet()
    assert len(world.pods) == 3
    assert world.workload is None


def test_without_kueue_the_job_waits_and_says_so_until_it_is_there() -> None:
    document = builders.manifest(worker=1)
    document["metadata"]["labels"] = {names.LABEL_QUEUE: "research"}
    world = builders.World(load.parse_job(document), settings=queues.QUEUES, flavors=queues.FLAVORS)
    refusal = observation.Refusal(names.Reason.KUEUE_NOT_INSTALLED, "install it", final=False)
    world.step(refusal=refusal)
    refused = names.ConditionType.CREATION_REFUSED
    assert builders.truth(world, refused) == ("True", "KueueNotInstalled")
    world.run_until_quiet()
    assert builders.truth(world, refused) == ("False", "ReplicasCreated")
    queues.admit(world)
    assert len(world.pods) == 1
