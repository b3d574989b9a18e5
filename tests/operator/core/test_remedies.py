"""What Kubernetes and replicas say, and what the operator advises then."""

import re

import pytest

from testing.operator import builders
from tfparallel_operator.api import names
from tfparallel_operator.core import observation, remedies
from tfparallel_operator.core.status import conditions
from tfparallel_trainer.contract import exits

WORDS = {
    "dead webhook": (
        'Internal error occurred: failed calling webhook "pods.example.com": failed to call'
        ' webhook: Post "https://127.0.0.1:9/mutate": connect: connection refused',
        "repair webhook pods.example.com, or delete its configuration",
    ),
    "expired certificate of a webhook": (
        'Internal error occurred: failed calling webhook "pods.example.com": failed to call'
        ' webhook: Post "https://hooks/mutate": tls: failed to verify certificate: x509:'
        " certificate has expired or is not yet valid",
        "renew the certificate of webhook pods.example.com",
    ),
    "bounds of a LimitRange": (
        'pods "digits-chief-0" is forbidden: maximum memory usage per Container is 512Mi, but limit'
        " is 1Gi",
        "have the LimitRange changed",
    ),
    "ratio of a LimitRange": (
        'pods "digits-chief-0" is forbidden: memory max limit to request ratio per Container is 1,'
        " but provided ratio is 2.000000",
        "have the LimitRange changed",
    ),
    "missing RuntimeClass": (
        'pods "digits-chief-0" is forbidden: pod rejected: RuntimeClass "gvisor" not found',
        "Create the RuntimeClass gvisor",
    ),
    "namespace that is deleted": (
        'pods "digits-chief-0" is forbidden: unable to create new content in namespace team because'
        " it is being terminated",
        "another namespace",
    ),
    "security context constraints": (
        'pods "digits-chief-0" is forbidden: unable to validate against any security context'
        ' constraint: [provider "restricted-v2": .spec.containers[0].runAsUser: Invalid value:'
        " 65532: must be in the ranges: [1000680000, 1000689999]]",
        "jobs.podDefaults of the chart, or grant the service account an SCC",
    ),
    "gpus": (
        "Unschedulable: 0/4 nodes are available: 4 Insufficient nvidia.com/gpu. no new claims to"
        " deallocate, preemption: 0/4 nodes are available: 4 No preemption victims found for"
        " incoming pod.",
        "Lower devices of the role",
    ),
    "cpu": (
        "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu.",
        "Lower resources.requests.cpu of the role",
    ),
    "memory": ("0/1 nodes are available: 1 Insufficient memory.", "resources.requests.memory"),
    "other resource": ("0/1 nodes are available: 1 Insufficient example.com/fpga.", "example.com/"),
    "taint": (
        "0/1 nodes are available: 1 node(s) had untolerated taint {dedicated: ml}. preemption: 0/1"
        " nodes are available: 1 Preemption is not helpful for scheduling.",
        "Add a toleration",
    ),
    "selector": (
        "0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector.",
        "Correct nodeSelector",
    ),
    "cordoned": ("0/1 nodes are available: 1 node(s) were unschedulable.", "kubectl uncordon"),
    "no nodes": ("no nodes available to schedule pods", "Add nodes"),
    "missing claim": (
        '0/4 nodes are available: persistentvolumeclaim "digits" not found. not found',
        "Create the claim digits",
    ),
    "unbound claim": (
        "0/4 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
        "kubectl describe pvc",
    ),
    "volume elsewhere": (
        "0/2 nodes are available: 2 node(s) didn't match PersistentVolume's node affinity.",
        "ReadWriteMany",
    ),
    "volume in use": (
        'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) digits-chief-0',
        "ReadWriteMany",
    ),
    "missing ConfigMap, as a volume": (
        'FailedMount: MountVolume.SetUp failed for volume "source" : configmap "digits" not found',
        "kubectl create configmap digits",
    ),
    "missing Secret, in the environment": (
        'CreateContainerConfigError: secret "bucket" not found',
        "kubectl create secret generic bucket",
    ),
    "missing key": (
        "CreateContainerConfigError: couldn't find key token in Secret team/bucket",
        "Add the key token to the Secret",
    ),
    "missing item": (
        'FailedMount: MountVolume.SetUp failed for volume "v" : configmap references non-existent'
        " config key: model.py",
        "Add the key model.py",
    ),
    "image that is not there": (
        'ImagePullBackOff: Back-off pulling image "nope/none:1": ErrImagePull: rpc error: code ='
        ' NotFound desc = failed to pull and unpack image "docker.io/nope/none:1": not found',
        "Push the image",
    ),
    "image that is private": (
        "ErrImagePull: failed to authorize: failed to fetch anonymous token: unexpected status"
        " from GET request: 401 Unauthorized",
        "imagePullSecrets",
    ),
    "registry out of reach": (
        "ErrImagePull: failed to do request: dial tcp: lookup registry.invalid: no such host",
        "Check the name of the image",
    ),
    "image name": (
        'InvalidImageName: Failed to apply default image tag "Nope:1:2"',
        "REGISTRY/NAME:TAG",
    ),
    "quota": (
        'pods "digits-worker-1" is forbidden: exceeded quota: team, requested: pods=1, used:'
        " pods=2, limited: pods=2",
        "kubectl describe quota team",
    ),
    "quota that needs requests": (
        'pods "digits-worker-1" is forbidden: failed quota: team: must specify cpu for: tensorflow',
        "Set resources of the role",
    ),
    "priority": (
        'pods "digits-chief-0" is forbidden: no PriorityClass with name urgent was found',
        "Create the PriorityClass urgent",
    ),
    "service account": (
        'pods "digits-chief-0" is forbidden: error looking up service account team/ml:'
        ' serviceaccount "ml" not found',
        "Create the service account ml",
    ),
    "gang": (
        "Unschedulable: optimistic rejection in PostFilter",
        "The replicas start together",
    ),
    "gang of several priorities": (
        "SchedulerError: all pods in a single pod group should have the same priority as the pod"
        " group's priority, got 0 and 1000",
        "the same priorityClassName",
    ),
    "gang that is not complete": (
        "Unschedulable: pre-filter pod digits-worker-0 cannot find enough sibling pods, current"
        " pods number: 3, minMember of group: 5",
        "The replicas start together",
    ),
    "queue that is full": (
        "couldn't assign flavors to pod set worker: insufficient unused quota for cpu in flavor"
        " default-flavor, 4 more needed",
        "Wait until other jobs of the queue end",
    ),
    "queue that is too small": (
        "couldn't assign flavors to pod set worker: insufficient quota for nvidia.com/gpu in"
        " flavor h100, request > maximum capacity (24 > 16)",
        "The queue never has as much",
    ),
    "no queue": ("Inadmissible: LocalQueue research doesn't exist", "Create the LocalQueue"),
    "no gang scheduler": (
        "the API server does not know PodGroups of scheduling.x-k8s.io (see",
        "Install the gang scheduler",
    ),
    "no Kueue": (
        "the API server does not know Workloads of kueue.x-k8s.io, which the label",
        "Install Kueue",
    ),
    "autoscaler without requests": (
        "failed to get cpu utilization: missing request for cpu in container tensorflow of Pod"
        " digits-worker-0",
        "Set resources.requests.cpu",
    ),
    "autoscaler that has just begun": (
        "failed to get cpu utilization: unable to get metrics for resource cpu: no metrics returned"
        " from resource metrics API",
        "Wait a minute",
    ),
    "program": (
        'StartError: failed to create containerd task: exec: "pythn": executable file not found in'
        " $PATH",
        "Correct command",
    ),
    "eviction": (
        "Evicted: The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi",
        "resources.requests.ephemeral-storage",
    ),
}


@pytest.mark.parametrize("case", WORDS)
def test_words_of_kubernetes_have_a_remedy(case: str) -> None:
    message, remedy = WORDS[case]
    assert remedy in remedies.find(message)


def test_words_that_nobody_knows_have_none() -> None:
    assert remedies.find("0/4 nodes are available: 4 the moon is full.") == ""
    assert remedies.find("") == ""


def test_every_remedy_is_short_and_ends() -> None:
    sentences = [remedy.sentence for remedy in remedies.TABLE]
    for sentence in (*sentences, *remedies.BY_EXIT_CODE.values()):
        assert sentence.endswith(".")
        assert len(sentence.split()) <= 25, sentence
    assert {code for code in exits.Exit if code} <= {*remedies.BY_EXIT_CODE}


def test_every_name_in_a_remedy_is_a_group_of_its_pattern() -> None:
    for remedy in remedies.TABLE:
        named = set(re.findall(r"\{(\w+)\}", remedy.sentence))
        assert named <= {*remedy.pattern.groupindex}, remedy.pattern.pattern
        assert not named or "|" not in re.sub(r"\(.*?\)", "", remedy.pattern.pattern)


@pytest.mark.parametrize(
    ("code", "reason", "message", "remedy"),
    [
        (137, "OOMKilled", "", remedies.OUT_OF_MEMORY),
        (65, "Error", "", remedies.BY_EXIT_CODE[65]),
        (65, "Error", "model.py: KeyError: 1", remedies.BY_EXIT_CODE[65]),
        (78, "Error", "Set trainer.epochs to 1 or more", ""),
        (3, "Error", "", ""),
        (-1, "Evicted", "The node was low on resource: memory. ", "resources.requests.memory"),
        (128, "StartError", 'exec: "pythn": executable file not found in $PATH', "Correct command"),
    ],
)
def test_an_exit_has_the_remedy_of_its_cause(
    code: int, reason: str, message: str, remedy: str
) -> None:
    advice = remedies.find_for_exit(code, reason, message)
    assert remedy in advice
    assert bool(remedy) == bool(advice)


def test_a_message_is_bounded_and_keeps_its_remedy() -> None:
    message = remedies.Advice("word " * 1000, "Do it.").message
    assert len(message) < remedies.LONGEST_WORDS + 10
    assert message.endswith("…. Do it.")
    assert remedies.Advice("as it is").message == "as it is"


def _message(world: builders.World, kind: names.ConditionType) -> str:
    condition = conditions.find(world.status, kind)
    assert condition is not None
    return condition.message


def test_pods_that_wait_have_their_remedy_in_the_condition() -> None:
    world = builders.a_world(worker=2)
    message = "Unschedulable: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    world.update("job-worker-1", waiting=message).run_until_quiet()
    assert _message(world, names.ConditionType.RUNNING) == (
        f"0/2 replicas run or have completed; job-worker-1: {message} Lower devices of the role to"
        " what a node has free, wait for other jobs, or add nodes with GPUs."
    )


def test_the_condition_has_each_cause_with_its_remedy_once() -> None:
    world = builders.a_world(chief=1, worker=2)
    pushed_back = "Unschedulable: optimistic rejection in PostFilter"
    no_room = "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu."
    no_image = "ImagePullBackOff: registry.example/job:1: not found"
    world.update("job-chief-0", waiting=pushed_back)
    world.update("job-worker-0", waiting=no_room).run_until_quiet()
    assert _message(world, names.ConditionType.RUNNING) == (
        f"0/3 replicas run or have completed; job-worker-0: {no_room} {remedies.find(no_room)}"
    )
    world.update("job-chief-0", waiting=no_room)
    world.update("job-worker-1", waiting=no_image, node="node-1").run_until_quiet()
    assert _message(world, names.ConditionType.RUNNING) == (
        f"0/3 replicas run or have completed; job-chief-0: {no_room} {remedies.find(no_room)}"
        f" job-worker-1: {no_image}. {remedies.find(no_image)}"
    )


def test_a_cause_without_a_remedy_ends_before_the_next() -> None:
    causes = ["job-chief-0: Odd words", "job-worker-0: 1 Insufficient cpu", "job-ps-0: Odd too"]
    candidates = [*map(remedies.explain, causes)]
    assert remedies.join(candidates) == (
        f"job-chief-0: Odd words. job-worker-0: 1 Insufficient cpu. {remedies.find(causes[1])}"
    )
    assert remedies.join(candidates[:1]) == causes[0]


def test_pods_that_are_refused_have_their_remedy_once() -> None:
    world = builders.a_world(worker=1)
    refused = "pods is forbidden: exceeded quota: team"
    refusal = observation.Refusal(names.Reason.QUOTA_EXCEEDED, refused, final=False)
    world.step(refusal=refusal)
    message = _message(world, names.ConditionType.CREATION_REFUSED)
    assert message.endswith("`kubectl describe quota team` shows its use.")
    world.pods.clear()
    world.step()
    assert _message(world, names.ConditionType.RUNNING).count("kubectl describe quota") <= 1


def test_a_failure_has_its_remedy_in_the_condition_and_the_event() -> None:
    world = builders.running(worker=1, run_policy={"backoffLimit": 0})
    world.exit("job-worker-0", 127).run_until_quiet()
    world.advance(60).run_until_quiet()
    message = _message(world, names.ConditionType.FAILED)
    assert message.endswith(f"backoffLimit are used. {remedies.BY_EXIT_CODE[127]}")
    assert world.events[-1].message == message


def test_what_the_trainer_says_of_its_end_stands_alone() -> None:
    world = builders.running(worker=1)
    world.exit("job-worker-0", 78, "Set trainer.epochs to 1 or more").run_until_quiet()
    assert _message(world, names.ConditionType.FAILED).endswith(": Set trainer.epochs to 1 or more")


def test_a_stall_says_what_to_do() -> None:
    assert "Read what the coordinator wrote" in remedies.find(
        "has reported no progress for 60 s (runPolicy.stallDeadlineSeconds)"
    )
