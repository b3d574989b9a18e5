"""The kustomizations build, and install the same objects as the chart."""

import shutil
from pathlib import Path

import pytest

from images import targets
from testing import paths
from testing.operator import rendering

pytestmark = pytest.mark.timeout(1200)  # the first run builds helm and kubectl


@pytest.fixture(scope="module")
def default(kustomize: rendering.Render) -> rendering.Objects:
    return kustomize("manifests/overlays/default")


def test_base_names_no_namespace_and_no_tag(kustomize: rendering.Render) -> None:
    objects = kustomize("manifests/base")
    assert objects.of_kind("Deployment")
    for manifest in objects:
        assert "namespace" not in manifest["metadata"]
    assert rendering.container(objects)["image"] == targets.OPERATOR.repository


def test_default_installs_what_the_chart_installs(
    default: rendering.Objects, chart: rendering.Render
) -> None:
    from_kustomize = default.normalised()
    namespace = from_kustomize.pop(("Namespace", "", rendering.NAMESPACE))
    from_chart = chart().normalised()
    assert from_kustomize.keys() == from_chart.keys()
    for key, manifest in from_kustomize.items():
        assert manifest == from_chart[key], key
    level = namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    assert level == "restricted"


def test_the_overlay_with_two_operators_installs_what_the_chart_installs(
    kustomize: rendering.Render, chart: rendering.Render
) -> None:
    from_kustomize = kustomize("manifests/overlays/high-availability").normalised()
    from_chart = chart("replicas=2").normalised()
    del from_kustomize["Namespace", "", rendering.NAMESPACE]
    assert from_kustomize == from_chart


def test_another_namespace_names_other_outer_roles(
    kustomize: rendering.Render, tmp_path: Path
) -> None:
    """So two namespaces can have an installation each."""
    copy = shutil.copytree(paths.ROOT / "manifests", tmp_path / "manifests")
    file = copy / "overlays/default/kustomization.yaml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(f"namespace: {rendering.NAMESPACE}", "namespace: team-b"))
    objects = kustomize(str(file.parent))
    roles = objects.of_kind("ClusterRole")
    expected = {
        f"tfparallel-operator.team-b.{part}" for part in ("cluster", "jobs", "view", "edit")
    }
    assert {role["metadata"]["name"] for role in roles} == expected
    for binding in objects.of_kind("ClusterRoleBinding"):
        assert binding["roleRef"]["name"] == binding["metadata"]["name"]
        assert [subject["namespace"] for subject in binding["subjects"]] == ["team-b"]


def test_selectors_choose_the_operator_alone(default: rendering.Objects) -> None:
    template = default.one("Deployment")["spec"]["template"]
    selector = default.one("Service")["spec"]["selector"]
    assert selector
    assert selector.items() <= template["metadata"]["labels"].items()
    assert default.one("Deployment")["spec"]["selector"]["matchLabels"] == selector


@pytest.mark.parametrize("overlay", ["default", "high-availability", "namespaced"])
def test_one_file_says_where_both_images_come_from(
    overlay: str, kustomize: rendering.Render, tmp_path: Path
) -> None:
    copy = shutil.copytree(paths.ROOT / "manifests", tmp_path / "manifests")
    file = copy / "release/kustomization.yaml"
    text = file.read_text(encoding="utf-8")
    for name in ("newName: tfparallel-operator", "value: tfparallel-trainer"):
        assert text.count(name) == 1
        text = text.replace(name, name.replace(": ", ": registry.example/"))
    file.write_text(text, encoding="utf-8")
    objects = kustomize(str(copy / "overlays" / overlay))
    images = (
        rendering.container(objects)["image"],
        rendering.environment(objects)["TFPARALLEL_TRAINER_IMAGE"],
    )
    assert images == tuple(
        target.full_reference("registry.example", "") for target in targets.TARGETS.values()
    )


def test_versions_are_those_of_the_distributions(default: rendering.Objects) -> None:
    labels = [manifest["metadata"]["labels"] for manifest in default]
    assert {labels_of_object["app.kubernetes.io/version"] for labels_of_object in labels} == {
        targets.version()
    }


COMPONENTS = {
    "service-monitor": "metrics.serviceMonitor.enabled=true",
    "alerts": "metrics.prometheusRule.enabled=true",
    "dashboard": "metrics.dashboard.enabled=true",
    "network-policy": "networkPolicy.enabled=true",
    "without-metrics": "metrics.enabled=false",
}


def with_component(name: str, folder: Path) -> str:
    """A copy of the default overlay in which a component is no comment."""
    copy = shutil.copytree(paths.ROOT / "manifests", folder / "manifests")
    file = copy / "overlays/default/kustomization.yaml"
    text = file.read_text(encoding="utf-8")
    line = f"#  - ../../components/{name}\n"
    assert text.count(line) == 1
    file.write_text(text.replace(line, line.removeprefix("#")), encoding="utf-8")
    return str(file.parent)


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_component_installs_what_a_value_of_the_chart_does(
    name: str, kustomize: rendering.Render, chart: rendering.Render, tmp_path: Path
) -> None:
    from_kustomize = in_order(kustomize(with_component(name, tmp_path))).normalised()
    from_chart = in_order(chart(COMPONENTS[name])).normalised()
    del from_kustomize["Namespace", "", rendering.NAMESPACE]
    assert from_kustomize == from_chart


def in_order(objects: rendering.Objects) -> rendering.Objects:
    """The objects with sorted variables: a patch of kustomize puts those that it has first."""
    rendering.container(objects)["env"].sort(key=lambda variable: variable["name"])
    return objects


def test_every_component_has_a_value() -> None:
    folders = (paths.ROOT / "manifests/components").iterdir()
    assert {folder.name for folder in folders} == {*COMPONENTS}


def test_the_overlay_with_roles_alone_installs_what_the_chart_installs(
    kustomize: rendering.Render, chart: rendering.Render
) -> None:
    from_kustomize = kustomize("manifests/overlays/namespaced")
    values = ("rbac.clusterRights=false", f"watchNamespaces={{{rendering.NAMESPACE}}}")
    from_chart = chart(*values, "crds.install=false")
    variables = rendering.container(from_kustomize)["env"]
    ordered = [variable["name"] for variable in variables]
    watched = ordered.index("TFPARALLEL_WATCH_NAMESPACES")
    assert ordered.index("POD_NAMESPACE") < watched  # the variable refers to it
    assert variables[watched]["value"] == "$(POD_NAMESPACE)"
    variables[watched]["value"] = rendering.NAMESPACE
    assert in_order(from_kustomize).normalised() == in_order(from_chart).normalised()
