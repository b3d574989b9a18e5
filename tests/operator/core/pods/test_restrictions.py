"""What a job's pods use, in every way that a pod can; and what is refused of it."""

import dataclasses
from typing import Any

import pytest

from testing.operator import builders
from tfparallel_operator.api import names
from tfparallel_operator.core import installation, layout, observation
from tfparallel_operator.core.pods import restrictions

TEMPLATE = "spec.tfReplicaSpecs.Worker.template.spec"
REFERENCE = {"name": "hidden"}
FORBIDDEN = installation.HostAccess.FORBIDDEN
APPARMOR = "container.apparmor.security.beta.kubernetes.io/tensorflow"
ENV_FROM = [{"configMapRef": {"name": "open"}}, {"secretRef": REFERENCE}]
ENV = [
    {"name": "A", "value": "b"},
    {"name": "B", "valueFrom": {"secretKeyRef": {**REFERENCE, "key": "k"}}},
]
WORKER = {"name": names.CONTAINER, "image": "i"}


def container(**fields: Any) -> dict[str, Any]:
    return {"containers": [{**WORKER, **fields}]}


def volume(**source: Any) -> dict[str, Any]:
    return {**container(), "volumes": [{"name": "v", **source}]}


def find_uses(
    pod_spec: dict[str, Any],
    of_jobs: installation.InstallationSettings = builders.SETTINGS,
    **spec: Any,
) -> list[restrictions.Use]:
    """What a job uses whose workers have this template; the account of all is left out."""
    role = {"replicas": 1, "template": {"spec": {"serviceAccountName": "trainer", **pod_spec}}}
    job = builders.a_job(trainer=True, worker=1, spec={"tfReplicaSpecs": {"Worker": role}, **spec})
    account = restrictions.Kind.SERVICE_ACCOUNT, "trainer"
    uses = restrictions.find_uses(layout.build(job), of_jobs)
    return [use for use in uses if (use.kind, use.value) != account]


SECRETS = {
    "imagePullSecrets[0].name": {**container(), "imagePullSecrets": [REFERENCE]},
    "containers[0].envFrom[1].secretRef.name": container(envFrom=ENV_FROM),
    "containers[0].env[1].valueFrom.secretKeyRef.name": container(env=ENV),
    "containers[1].env[1].valueFrom.secretKeyRef.name": {
        "containers": [WORKER, {"name": "sidecar", "image": "i", "env": ENV}]
    },
    "initContainers[0].envFrom[1].secretRef.name": {
        **container(),
        "initContainers": [{"name": "first", "image": "i", "envFrom": ENV_FROM}],
    },
    "ephemeralContainers[0].env[1].valueFrom.secretKeyRef.name": {
        **container(),
        "ephemeralContainers": [{"name": "debug", "image": "i", "env": ENV}],
    },
    "volumes[0].projected.sources[1].secret.name": volume(
        projected={"sources": [{"configMap": {"name": "open"}}, {"secret": REFERENCE}]}
    ),
    "volumes[0].azureFile.secretName": volume(azureFile={"secretName": "hidden", "shareName": "s"}),
    "volumes[0].secret.secretName": volume(secret={"secretName": "hidden", "optional": True}),
    "volumes[0].csi.nodePublishSecretRef.name": volume(
        csi={"driver": "d", "nodePublishSecretRef": REFERENCE}
    ),
    **{
        f"volumes[0].{kind}.secretRef.name": volume(**{kind: {"secretRef": REFERENCE}})
        for kind in ("cephfs", "cinder", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos")
    },
}
"""Each way of VisitPodSecretNames (Kubernetes 1.37, pkg/api/v1/pod/util.go), by its path."""

HOST = {
    "hostNetwork": {**container(), "hostNetwork": True},
    "hostPID": {**container(), "hostPID": True},
    "hostIPC": {**container(), "hostIPC": True},
    "volumes[0].hostPath": volume(hostPath={"path": "/"}),
    "containers[0].securityContext.privileged": container(securityContext={"privileged": True}),
    "initContainers[0].securityContext.privileged": {
        **container(),
        "initContainers": [{"name": "x", "image": "i", "securityContext": {"privileged": True}}],
    },
    "containers[0].ports[1].hostPort": container(
        ports=[{"containerPort": 1}, {"containerPort": 2, "hostPort": 8080}]
    ),
    "containers[0].securityContext.procMount": container(securityContext={"procMount": "Unmasked"}),
    "containers[0].securityContext.capabilities.add[2]": container(
        securityContext={"capabilities": {"add": ["IPC_LOCK", "CAP_CHOWN", "SYS_ADMIN"]}}
    ),
    "initContainers[0].securityContext.capabilities.add[0]": {
        **container(),
        "initContainers": [
            {"name": "x", "image": "i", "securityContext": {"capabilities": {"add": ["ALL"]}}}
        ],
    },
    **{
        f"securityContext.{profile}.type": {
            **container(),
            "securityContext": {profile: {"type": "Unconfined"}},
        }
        for profile in ("seccompProfile", "appArmorProfile")
    },
    "containers[0].securityContext.seccompProfile.type": container(
        securityContext={"seccompProfile": {"type": "Unconfined"}}
    ),
    **{
        f"containers[0].securityContext.seLinuxOptions.{field}": container(
            securityContext={"seLinuxOptions": {"level": "s0:c1,c2", field: value}}
        )
        for field, value in {"type": "spc_t", "user": "system_u", "role": "system_r"}.items()
    },
    **{
        f"containers[0].{probe}.{request}.host": container(
            **{probe: {request: {"host": "127.0.0.1", "port": 10250}}}
        )
        for probe in ("livenessProbe", "readinessProbe", "startupProbe")
        for request in ("httpGet", "tcpSocket")
    },
    "containers[0].lifecycle.preStop.httpGet.host": container(
        lifecycle={"preStop": {"httpGet": {"host": "169.254.169.254", "port": 80}}}
    ),
    "initContainers[0].lifecycle.postStart.tcpSocket.host": {
        **container(),
        "initContainers": [
            {
                "name": "x",
                "image": "i",
                "lifecycle": {"postStart": {"tcpSocket": {"host": "127.0.0.1", "port": 1}}},
            }
        ],
    },
    "securityContext.windowsOptions.hostProcess": {
        **container(),
        "securityContext": {"windowsOptions": {"hostProcess": True}},
    },
    "containers[0].securityContext.windowsOptions.hostProcess": container(
        securityContext={"windowsOptions": {"hostProcess": True}}
    ),
}


@pytest.mark.parametrize("path", SECRETS)
def test_every_way_to_name_a_secret_is_seen(path: str) -> None:
    expected = restrictions.Use(restrictions.Kind.SECRET, "hidden", f"{TEMPLATE}.{path}")
    assert find_uses(SECRETS[path]) == [expected]


@pytest.mark.parametrize(
    ("path", "trainer"),
    [
        ("env[1].valueFrom.secretKeyRef.name", {"env": ENV}),
        ("envFrom[1].secretRef.name", {"envFrom": ENV_FROM}),
        (
            "volumes[0].secret",
            {"volumes": [{"name": "keys", "mountPath": "/keys", "secret": "hidden"}]},
        ),
        ("imagePullSecrets[0]", {"imagePullSecrets": ["hidden"]}),
    ],
)
def test_fields_of_the_trainer_are_named_as_they_are_written(
    path: str, trainer: dict[str, Any]
) -> None:
    expected = restrictions.Use(restrictions.Kind.SECRET, "hidden", f"spec.trainer.{path}")
    assert find_uses(container(), trainer={"epochs": 1, **trainer}) == [expected]


@pytest.mark.parametrize("path", HOST)
def test_every_way_to_the_node_is_seen(path: str) -> None:
    [use] = find_uses(HOST[path])
    assert (use.kind, use.path) == (restrictions.Kind.HOST, f"{TEMPLATE}.{path}")


def test_an_annotation_that_ends_the_confinement_of_a_container_is_seen() -> None:
    prefix = "container.apparmor.security.beta.kubernetes.io"
    annotations = {
        f"{prefix}/{names.CONTAINER}": "unconfined",
        f"{prefix}/sidecar": "runtime/default",
        "team": "unconfined",
    }
    template = {
        "metadata": {"annotations": annotations},
        "spec": {"serviceAccountName": "trainer", **container()},
    }
    role = {"replicas": 1, "template": template}
    job = builders.a_job(trainer=True, worker=1, spec={"tfReplicaSpecs": {"Worker": role}})
    [use] = [
        use
        for use in restrictions.find_uses(layout.build(job), builders.SETTINGS)
        if use.kind is restrictions.Kind.HOST
    ]
    above = TEMPLATE.removesuffix(".spec")
    assert use.path == f"{above}.metadata.annotations[{prefix}/{names.CONTAINER}]"


def test_confinement_and_requests_to_the_pod_itself_are_no_host_access() -> None:
    security = {
        "seccompProfile": {"type": "RuntimeDefault"},
        "appArmorProfile": {"type": "Localhost", "localhostProfile": "p"},
        "seLinuxOptions": {"level": "s0:c1,c2", "type": "container_t"},
    }
    probe = {"httpGet": {"port": 80, "path": "/"}}
    assert find_uses(container(securityContext=security, livenessProbe=probe)) == []


def test_the_field_of_a_job_for_its_nodes_network_is_seen() -> None:
    [use] = find_uses(container(), network="Open", hostNetwork=True)
    assert use == restrictions.Use(restrictions.Kind.HOST, "hostNetwork", "spec.hostNetwork")


@pytest.mark.parametrize(
    ("fields", "path", "account"),
    [
        ({"serviceAccountName": "powerful"}, "serviceAccountName", "powerful"),
        # The older name of the field; it counts where the newer one is absent or empty.
        ({"serviceAccountName": "", "serviceAccount": "powerful"}, "serviceAccount", "powerful"),
        ({"serviceAccountName": ""}, "serviceAccountName", "default"),
    ],
)
def test_the_account_of_pods_is_seen(fields: dict[str, str], path: str, account: str) -> None:
    [use] = find_uses({**container(), **fields})
    expected = restrictions.Use(restrictions.Kind.SERVICE_ACCOUNT, account, f"{TEMPLATE}.{path}")
    assert use == expected


DEFAULTS = {
    "metadata": {"annotations": {APPARMOR: "unconfined"}},
    "spec": {
        "serviceAccountName": "chosen",
        "imagePullSecrets": [{"name": "registry"}],
        "initContainers": [{"name": "tuning", "securityContext": {"privileged": True}}],
        "volumes": [{"name": "data", "hostPath": {"path": "/data"}}],
    },
}
OF_DEFAULTS = {
    "chosen": "spec.serviceAccountName",
    "registry": "spec.imagePullSecrets[0].name",
    "privileged": "spec.initContainers[0].securityContext.privileged",
    "the host path /data": "spec.volumes[0].hostPath",
    "an unconfined AppArmor profile": f"metadata.annotations[{APPARMOR}]",
}


def test_a_job_uses_what_the_installation_adds_to_its_pods() -> None:
    """It may run its own program in a container of the defaults, and mount their volumes."""
    of_jobs = dataclasses.replace(builders.SETTINGS, pod_defaults=DEFAULTS)
    job = builders.a_job(trainer=True, worker=1)
    uses = {use.value: use.path for use in restrictions.find_uses(layout.build(job), of_jobs)}
    assert uses == {value: f"jobs.podDefaults.{path}" for value, path in OF_DEFAULTS.items()}
    # A job that empties the field gets the namespace's account in the place of the chosen one.
    more = {use.value for use in find_uses({**container(), "serviceAccountName": ""}, of_jobs)}
    assert more - uses.keys() == {"default"}


def test_the_secret_that_pulls_the_shipped_image_is_the_installations_own() -> None:
    of_jobs = dataclasses.replace(builders.SETTINGS, trainer_pull_secrets=("registry",))
    assert find_uses(container(), of_jobs) == []


@pytest.mark.parametrize(
    ("of_pods", "limits", "problem"),
    [
        ({"hostPID": True}, {"host_access": FORBIDDEN}, "jobs.podDefaults.spec.hostPID is hostPID"),
        (
            {"serviceAccountName": "chosen"},
            {"service_accounts": ("trainer",)},
            "jobs.podDefaults.spec.serviceAccountName is 'chosen', and jobs may have trainer",
        ),
        ({"serviceAccountName": "trainer"}, {"service_accounts": ("trainer",)}, ""),
        # Whether it has the label depends on the namespace.
        ({"imagePullSecrets": [REFERENCE]}, {"secret_labels": {"for": "jobs"}}, ""),
    ],
)
def test_defaults_that_no_job_may_have_are_named(
    of_pods: dict[str, Any], limits: dict[str, Any], problem: str
) -> None:
    defaults, restricted = {"spec": of_pods}, installation.Restrictions(**limits)
    message = restrictions.find_problem_of_defaults(defaults, restricted)
    assert message.startswith(problem) and bool(message) == bool(problem)


RESTRICTED = installation.Restrictions(
    ("trainer", "default"), installation.HostAccess.FORBIDDEN, {"for": "jobs"}
)
USES = {
    restrictions.Kind.SERVICE_ACCOUNT: restrictions.Use(
        restrictions.Kind.SERVICE_ACCOUNT, "powerful", "spec.x"
    ),
    restrictions.Kind.HOST: restrictions.Use(restrictions.Kind.HOST, "hostPID", "spec.x"),
    restrictions.Kind.SECRET: restrictions.Use(restrictions.Kind.SECRET, "hidden", "spec.x"),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_refusal_names_field_value_and_who_may_change_it(use: restrictions.Use) -> None:
    message = restrictions.find_problem(use, RESTRICTED, {})
    assert message.startswith("spec.x ")
    assert use.value in message
    assert "have an administrator change jobs.restrictions." in message
    assert restrictions.find_problem(use, installation.Restrictions(), {}) == ""


@pytest.mark.parametrize(
    ("labels", "is_allowed"),
    [
        ({"for": "jobs", "more": "x"}, True),
        ({"for": "people"}, False),
        ({}, False),
        (None, False),
    ],
)
def test_a_secret_is_allowed_by_its_labels_alone(
    labels: dict[str, str] | None, is_allowed: bool
) -> None:
    """One sentence says that it is missing or has no label: nobody learns which Secrets exist."""
    use = USES[restrictions.Kind.SECRET]
    message = restrictions.find_problem(use, RESTRICTED, {"hidden": labels})
    assert (message == "") == is_allowed
    if not is_allowed:
        assert message == restrictions.find_problem(use, RESTRICTED, {"hidden": {}})


@dataclasses.dataclass
class RestrictedWorld(builders.World):
    """A world in which the installation may restrict the job."""

    restriction: str = ""

    def environment(self, refusal: observation.Refusal | None = None) -> observation.Environment:
        return observation.Environment(restriction=self.restriction, refusal=refusal)


def test_a_restricted_job_gets_nothing_and_says_why_once() -> None:
    job = builders.a_job(worker=1, spec={"network": "Open", "hostNetwork": True})
    world = RestrictedWorld(job, restriction="spec.hostNetwork is hostNetwork", host_port=10_000)
    for _ in range(3):
        world.run_until_quiet()
    assert not world.pods
    assert not world.has_service
    assert world.status.host_ports is None  # Others may have them.
    assert [event.reason for event in world.events] == [names.Reason.JOB_RESTRICTED]
    [refused] = [c for c in world.status.conditions if c.type == "CreationRefused"]
    assert (refused.status, refused.message) == ("True", "spec.hostNetwork is hostNetwork")
    world.restriction = ""
    world.run_until_quiet()
    assert world.pods.keys() == {"job-worker-0"}
    assert all(c.status == "False" for c in world.status.conditions if c.type == "CreationRefused")


def test_a_running_job_goes_on_and_gets_no_new_pods() -> None:
    world = RestrictedWorld(builders.a_job(chief=1, worker=1))
    world.run_until_quiet()
    world.run("job-chief-0", "job-worker-0").run_until_quiet()
    world.restriction = "spec.x is forbidden"
    world.run_until_quiet()
    assert world.status.state is names.State.RUNNING
    assert len(world.pods) == 2
    world.exit("job-worker-0", 1).run_until_quiet()
    assert not world.pods
    assert world.status.attempt == 2
    [refused] = [c for c in world.status.conditions if c.type == "CreationRefused"]
    assert refused.message == "spec.x is forbidden"
    reasons = [event.reason for event in world.events]
    assert reasons.count(names.Reason.JOB_RESTRICTED) == 1
