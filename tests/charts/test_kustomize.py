"""The kustomizations build, and install the same objects as the chart."""

import pytest

from testing.images import inputs
from testing.operator import rendering
from tfparallel_operator.api import load

pytestmark = pytest.mark.timeout(1200)  # the first run builds helm and kubectl


@pytest.fixture(scope="module")
def default(kustomize: rendering.Render) -> rendering.Objects:
    return kustomize("manifests/overlays/default")


def test_base_names_no_namespace_and_no_tag(kustomize: rendering.Render) -> None:
    objects = kustomize("manifests/base")
    assert objects.of_kind("Deployment")
    for manifest in objects:
        assert "namespace" not in manifest["metadata"]
    assert rendering.container(objects)["image"] == inputs.OPERATOR.repository


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


def test_selectors_choose_the_operator_alone(default: rendering.Objects) -> None:
    template = default.one("Deployment")["spec"]["template"]
    selector = default.one("Service")["spec"]["selector"]
    assert selector
    assert selector.items() <= template["metadata"]["labels"].items()
    assert default.one("Deployment")["spec"]["selector"]["matchLabels"] == selector


def test_sample_is_the_example_with_all_that_it_names(kustomize: rendering.Render) -> None:
    objects = kustomize("manifests/samples")
    job = load.parse_job(objects.one("TFParallelJob"))
    trainer = job.spec.trainer
    assert trainer is not None
    assert trainer.source is not None
    assert trainer.source.config_map is not None
    assert trainer.checkpoint is not None
    source = objects.one("ConfigMap", trainer.source.config_map.name)
    model = rendering.ROOT / "examples/digits" / trainer.module
    assert source["data"] == {trainer.module: model.read_text(encoding="utf-8")}
    assert objects.one("PersistentVolumeClaim", trainer.checkpoint.claim)
