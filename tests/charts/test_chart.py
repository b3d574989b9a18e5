"""What the chart renders, with its defaults and with what people set."""

import json

import pytest
import yaml

from images import targets
from testing import paths
from testing.cluster import binaries
from testing.operator import rendering
from tfparallel_operator import main as operator
from tfparallel_operator.core import installation
from tfparallel_operator.engine.run import settings

pytestmark = pytest.mark.timeout(1200)  # the first run builds helm and kubectl

DIGEST = "sha256:" + "a" * 64
MONITORING = ("metrics.serviceMonitor", "metrics.prometheusRule", "metrics.dashboard")
OUTER_NAME = f"tfparallel-operator.{rendering.NAMESPACE}"


def test_lint_has_nothing_to_say(helm: rendering.Command) -> None:
    done = helm("lint", "--strict", str(paths.CHART))
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


def test_supported_kubernetes_is_what_the_tests_run() -> None:
    oldest, newest = (
        binaries.kubernetes_version(module).removeprefix("v").rpartition(".")[0]
        for module in ("older", "tools")
    )
    assert (
        f"Kubernetes {oldest} to {newest} " in (paths.ROOT / "docs/operate/install.md").read_text()
    )
    assert f"of Kubernetes {oldest} to {newest}, " in (paths.ROOT / "README.md").read_text()
    chart = yaml.safe_load((paths.CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["kubeVersion"] == f">={oldest}.0-0"


@pytest.mark.parametrize("suffix", ["-gke.1067000", "-eks-3abbec1", "+k3s1", "+rke2r1"])
def test_versions_of_vendors_are_versions_of_kubernetes(
    helm: rendering.Command, suffix: str
) -> None:
    oldest = binaries.kubernetes_version("older").rpartition(".")[0]
    before = f"v1.{int(oldest.rpartition('.')[2]) - 1}"

    def render(version: str) -> tuple[int, str]:
        done = helm("template", "x", str(paths.CHART), f"--kube-version={version}{suffix}")
        return done.returncode, done.stderr

    assert render(f"{oldest}.0") == (0, "")
    code, errors = render(f"{before}.9")
    assert code, errors
    assert "incompatible with Kubernetes" in errors


def test_default_images_are_those_that_the_dockerfile_builds(chart: rendering.Render) -> None:
    objects = chart()
    assert rendering.container(objects)["image"] == targets.OPERATOR.reference
    trainer = rendering.environment(objects)["TFPARALLEL_TRAINER_IMAGE"]
    assert trainer == targets.TRAINER.reference


def test_digest_wins_over_tag(chart: rendering.Render) -> None:
    objects = chart(
        "image.repository=mine", "image.tag=v1", f"image.digest={DIGEST}", "trainer.image.tag=v2"
    )
    assert rendering.container(objects)["image"] == f"mine@{DIGEST}"
    trainer = rendering.environment(objects)["TFPARALLEL_TRAINER_IMAGE"]
    assert trainer == f"{targets.TRAINER.repository}:v2"


def test_one_value_chooses_the_registry_of_both_images(chart: rendering.Render) -> None:
    registry = "registry.example:5000/team"
    objects = chart(f"global.imageRegistry={registry}", "trainer.image.registry=ignored.example")
    images = (
        rendering.container(objects)["image"],
        rendering.environment(objects)["TFPARALLEL_TRAINER_IMAGE"],
    )
    assert images == tuple(
        target.full_reference(registry, "") for target in (targets.OPERATOR, targets.TRAINER)
    )


def test_each_image_may_have_a_registry(chart: rendering.Render) -> None:
    objects = chart("image.registry=a.example", f"image.digest={DIGEST}", "trainer.image.tag=v2")
    assert (
        rendering.container(objects)["image"] == f"a.example/{targets.OPERATOR.repository}@{DIGEST}"
    )
    trainer = rendering.environment(objects)["TFPARALLEL_TRAINER_IMAGE"]
    assert trainer == f"{targets.TRAINER.repository}:v2"


def test_secrets_pull_the_images(chart: rendering.Render) -> None:
    objects = chart(
        "global.imagePullSecrets[0].name=both",
        "imagePullSecrets[0].name=first",
        "trainer.imagePullSecrets[0].name=second",
    )
    pod = objects.one("Deployment")["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "both"}, {"name": "first"}]
    secrets = rendering.environment(objects)["TFPARALLEL_TRAINER_PULL_SECRETS"]
    assert secrets == "both,second"
    # A parent chart may share them with charts that take names.
    names = chart(
        "global.imagePullSecrets={both}",
        "imagePullSecrets={first}",
        "trainer.imagePullSecrets={second}",
    )
    assert names == objects


def test_crd_is_kept_by_default_and_can_be_left_out(chart: rendering.Render) -> None:
    kept = chart().one("CustomResourceDefinition")
    assert kept["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    removed = chart("crds.keep=false").one("CustomResourceDefinition")
    assert "annotations" not in removed["metadata"]
    assert chart("crds.install=false").of_kind("CustomResourceDefinition") == []


def test_crd_is_the_generated_one(chart: rendering.Render) -> None:
    generated = paths.ROOT / "manifests/base/crd/tfparallel.dev_tfparalleljobs.yaml"
    expected = yaml.safe_load(generated.read_text(encoding="utf-8"))
    assert chart().one("CustomResourceDefinition")["spec"] == expected["spec"]


def test_all_namespaces_are_watched_by_default(chart: rendering.Render) -> None:
    objects = chart()
    assert rendering.environment(objects)["TFPARALLEL_WATCH_NAMESPACES"] == ""
    bindings = {m["metadata"]["name"] for m in objects.of_kind("ClusterRoleBinding")}
    assert bindings == {f"{OUTER_NAME}.cluster", f"{OUTER_NAME}.jobs"}


def test_rights_on_jobs_are_granted_in_watched_namespaces_alone(chart: rendering.Render) -> None:
    objects = chart("watchNamespaces={team-a,team-b}")
    assert rendering.environment(objects)["TFPARALLEL_WATCH_NAMESPACES"] == "team-a,team-b"
    cluster_wide = [m["metadata"]["name"] for m in objects.of_kind("ClusterRoleBinding")]
    assert cluster_wide == [f"{OUTER_NAME}.cluster"]
    bound = {
        m["metadata"]["namespace"]: m["roleRef"]["name"]
        for m in objects.of_kind("RoleBinding")
        if m["metadata"]["name"] == f"{OUTER_NAME}.jobs"
    }
    assert bound == dict.fromkeys(("team-a", "team-b"), f"{OUTER_NAME}.jobs")


def test_without_cluster_rights_there_are_only_roles(chart: rendering.Render) -> None:
    few = ("rbac.clusterRights=false", "watchNamespaces={team-a,team-b}")
    objects = chart(*few)
    assert objects.of_kind("ClusterRole", "ClusterRoleBinding") == []
    jobs = [m for m in objects.of_kind("Role") if m["metadata"]["name"].endswith(".jobs")]
    assert [role["metadata"]["namespace"] for role in jobs] == ["team-a", "team-b"]
    [cluster_wide] = [
        role
        for role in chart().of_kind("ClusterRole")
        if role["metadata"]["name"].endswith(".jobs")
    ]
    assert all(role["rules"] == cluster_wide["rules"] for role in jobs)
    bound = [m["roleRef"]["kind"] for m in objects.of_kind("RoleBinding")]
    assert set(bound) == {"Role"}
    assert rendering.environment(objects)["TFPARALLEL_PROGRESS_HOST"] == ""


def test_no_rule_is_wider_than_its_list(chart: rendering.Render) -> None:
    for role in chart().of_kind("ClusterRole", "Role"):
        for rule in role["rules"]:
            for field in ("apiGroups", "resources", "verbs"):
                assert "*" not in rule[field], role["metadata"]["name"]
            if "secrets" in rule["resources"]:
                assert role["kind"] == "Role"
                assert rule["resourceNames"] == ["tfparallel-operator-tls"]


def test_who_views_jobs_may_change_nothing_and_read_no_secrets(chart: rendering.Render) -> None:
    role = chart().one("ClusterRole", f"{OUTER_NAME}.view")
    assert role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    [rule] = role["rules"]
    assert rule["verbs"] == ["get", "list", "watch"]
    assert {resource.partition("/")[0] for resource in rule["resources"]} == {"tfparalleljobs"}


def test_the_lease_starts_empty_and_is_the_one_that_the_operator_holds(
    chart: rendering.Render,
) -> None:
    objects = chart("leaseSeconds=40", release="blue")
    lease = objects.one("Lease")
    environment = rendering.environment(objects)
    assert lease["metadata"]["name"] == environment["TFPARALLEL_LEASE"]
    assert "spec" not in lease
    assert environment["TFPARALLEL_LEASE_SECONDS"] == "40"
    rules = [rule for role in objects.of_kind("Role", "ClusterRole") for rule in role["rules"]]
    [rule] = [rule for rule in rules if "leases" in rule["resources"]]
    assert rule["resourceNames"] == [lease["metadata"]["name"]]
    assert rule["verbs"] == ["get", "patch"]


def test_several_operators_avoid_each_other_and_leave_one_by_one(
    chart: rendering.Render,
) -> None:
    alone = chart()
    assert alone.one("Deployment")["spec"]["replicas"] == 1
    assert alone.of_kind("PodDisruptionBudget") == []
    assert "affinity" not in alone.one("Deployment")["spec"]["template"]["spec"]
    objects = chart("replicas=2")
    deployment, budget = objects.one("Deployment")["spec"], objects.one("PodDisruptionBudget")
    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert budget["spec"]["selector"] == deployment["selector"]
    assert budget["spec"]["maxUnavailable"] == 1
    avoided = deployment["template"]["spec"]["affinity"]["podAntiAffinity"]
    [term] = avoided["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["labelSelector"] == deployment["selector"]
    chosen = chart("replicas=2", "affinity.nodeAffinity.mine=true")
    affinity = chosen.one("Deployment")["spec"]["template"]["spec"]["affinity"]
    assert affinity == {"nodeAffinity": {"mine": True}}


def test_the_secret_of_the_certificates_starts_empty_and_goes_with_the_chart(
    chart: rendering.Render,
) -> None:
    objects = chart()
    secret = objects.one("Secret")
    assert secret["metadata"]["name"] == rendering.environment(objects)["TFPARALLEL_TLS_SECRET"]
    assert not {"data", "stringData"} & secret.keys()


def test_operator_meets_the_level_restricted(chart: rendering.Render) -> None:
    pod = chart().one("Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_chart_sets_every_setting_of_the_operator(chart: rendering.Render) -> None:
    variables = {variable["name"] for variable in rendering.container(chart())["env"]}
    variables_of_main = {str(option.envvar) for option in operator.main.params}
    assert variables == variables_of_main - {"KUBECONFIG"}


def test_progress_host_is_the_service(chart: rendering.Render) -> None:
    objects = chart(release="blue")
    service = objects.one("Service")
    environment = rendering.environment(objects)
    name = service["metadata"]["name"]
    assert environment["TFPARALLEL_PROGRESS_HOST"] == f"{name}.$(POD_NAMESPACE).svc"
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    assert environment["TFPARALLEL_PROGRESS_PORT"] == str(ports["progress"])
    pods = objects.one("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= pods.items()


def _places(objects: rendering.Objects) -> set[tuple[str, str, str]]:
    """What tells the objects of a cluster apart, but for the resource definition."""
    return {key for key in objects.normalised() if key[0] != "CustomResourceDefinition"}


def test_two_releases_share_no_object(chart: rendering.Render) -> None:
    assert not _places(chart(release="blue")) & _places(chart(release="green"))


@pytest.mark.parametrize("few", ["rbac.clusterRights=true", "rbac.clusterRights=false"])
def test_one_release_name_in_two_namespaces_shares_no_object(
    chart: rendering.Render, few: str
) -> None:
    """Even where both watch one namespace, and one has the objects of monitoring."""
    shared = ("watchNamespaces={shared}", few, *(f"{name}.enabled=true" for name in MONITORING))
    outside = (f"{name}.namespace=monitoring" for name in MONITORING)
    values = (*shared, *outside)
    blue = chart(*values, "namespaceOverride=blue")
    green = chart(*values, "namespaceOverride=green")
    assert len(_places(blue)) > 10
    assert not _places(blue) & _places(green)
    # No pair of a release and a namespace makes the name of another pair.
    dashed = _places(chart("namespaceOverride=b-c", "fullnameOverride=a"))
    assert not dashed & _places(chart("namespaceOverride=c", "fullnameOverride=a-b"))


def test_an_existing_service_account_is_used_and_none_created(chart: rendering.Render) -> None:
    objects = chart("serviceAccount.create=false", "serviceAccount.name=mine")
    assert objects.of_kind("ServiceAccount") == []
    pod = objects.one("Deployment")["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "mine"
    subjects = [m["subjects"] for m in objects.of_kind("ClusterRoleBinding", "RoleBinding")]
    assert {subject["name"] for [subject] in subjects} == {"mine"}


def test_roles_can_be_left_to_others(chart: rendering.Render) -> None:
    objects = chart("rbac.create=false", "rbac.aggregate=false")
    assert objects.of_kind("ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding") == []


def test_placement_reaches_the_pod(chart: rendering.Render) -> None:
    objects = chart(
        "nodeSelector.pool=system",
        "tolerations[0].key=dedicated",
        "priorityClassName=high",
        "imagePullSecrets[0].name=registry",
        "podAnnotations.team=a",
        "extraEnv[0].name=X",
        "extraEnv[0].value=y",
        "podLabels.cost=a",
        "deploymentAnnotations.owner=b",
        "topologySpreadConstraints[0].maxSkew=1",
        "extraArgs={--workers=8}",
        "extraVolumes[0].name=certificates",
        "extraVolumeMounts[0].name=certificates",
        "extraVolumeMounts[0].mountPath=/certificates",
    )
    assert objects.one("Deployment")["metadata"]["annotations"] == {"owner": "b"}
    template = objects.one("Deployment")["spec"]["template"]
    pod = template["spec"]
    assert pod["nodeSelector"] == {"pool": "system"}
    assert pod["tolerations"] == [{"key": "dedicated"}]
    assert pod["priorityClassName"] == "high"
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert template["metadata"]["annotations"] == {"team": "a"}
    assert template["metadata"]["labels"]["cost"] == "a"
    assert pod["topologySpreadConstraints"] == [{"maxSkew": 1}]
    assert [volume["name"] for volume in pod["volumes"]] == ["tmp", "certificates"]
    container = rendering.container(objects)
    assert [mount["name"] for mount in container["volumeMounts"]] == ["tmp", "certificates"]
    assert container["args"] == ["--workers=8"]
    assert rendering.environment(objects)["X"] == "y"


def test_defaults_of_pods_reach_the_operator_as_they_are_written(chart: rendering.Render) -> None:
    container = "jobs.podDefaults.spec.containers[0]"
    objects = chart(
        f"{container}.name=tensorflow",
        f"{container}.env[0].name=CACHE",
        f"{container}.env[0].value=$(POD_NAME)/a&b",
    )
    text = rendering.environment(objects)["TFPARALLEL_POD_DEFAULTS"]
    # The kubelet makes $( of $$(, and would put the operator's POD_NAME for $(POD_NAME).
    template = json.loads(text.replace("$$(", "$("))
    variables = [{"name": "CACHE", "value": "$(POD_NAME)/a&b"}]
    assert "$$(POD_NAME)" in text
    assert template == {"spec": {"containers": [{"name": "tensorflow", "env": variables}]}}


def test_restrictions_reach_the_operator_and_give_the_right_that_they_need(
    chart: rendering.Render, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = "jobs.restrictions"
    objects = chart(
        f"{limits}.serviceAccounts={{trainer}}",
        f"{limits}.hostAccess=Forbidden",
        f"{limits}.secrets.matchLabels.use=jobs",
    )
    for name, value in rendering.environment(objects).items():
        monkeypatch.setenv(name, value)
    assert settings.Settings.from_environment().restrictions == installation.Restrictions(
        ("trainer",), installation.HostAccess.FORBIDDEN, {"use": "jobs"}
    )
    [rules] = [
        role["rules"]
        for role in objects.of_kind("ClusterRole")
        if role["metadata"]["name"] == f"{OUTER_NAME}.jobs"
    ]
    [rule] = [rule for rule in rules if "secrets" in rule["resources"]]
    assert rule == {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    others = chart(f"{limits}.hostAccess=Forbidden").of_kind("ClusterRole")
    assert not any("secrets" in rule["resources"] for role in others for rule in role["rules"])


def test_the_operator_may_live_in_another_namespace(chart: rendering.Render) -> None:
    objects = chart("namespaceOverride=machines", "metrics.serviceMonitor.enabled=true")
    namespaces = {m["metadata"].get("namespace", "machines") for m in objects}
    assert namespaces == {"machines"}
    subjects = [m["subjects"] for m in objects.of_kind("ClusterRoleBinding", "RoleBinding")]
    assert {subject["namespace"] for [subject] in subjects} == {"machines"}


def test_the_disruption_budget_can_be_chosen(chart: rendering.Render) -> None:
    chosen = chart("replicas=3", "podDisruptionBudget.minAvailable=50%")
    budget = chosen.one("PodDisruptionBudget")["spec"]
    assert budget["minAvailable"] == "50%"
    assert "maxUnavailable" not in budget
    left_out = chart("replicas=3", "podDisruptionBudget.enabled=false")
    assert left_out.of_kind("PodDisruptionBudget") == []
