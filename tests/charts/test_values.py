"""Values that are wrong, misplaced or contradict each other; the chart's schema and versions."""

import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from images import targets
from testing import paths
from testing.operator import rendering

pytestmark = pytest.mark.timeout(1200)  # the first run builds helm and kubectl


def refusal(helm: rendering.Command, values: Sequence[str]) -> str:
    """The error of `helm template` with these values; a mere name is left as it is."""
    settings = [f"--set={value}" for value in values if "=" in value]
    done = helm("template", "x", str(paths.CHART), *settings)
    assert done.returncode != 0
    return done.stderr


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("imagee.tag=1", "imagee"),
        ("image.tagg=1", "tagg"),
        ("workers=0", "/workers"),
        ("replicas=0", "/replicas"),
        ("leaseSeconds=1", "/leaseSeconds"),
        ("logFormat=xml", "/logFormat"),
        ("metrics.serviceMonitor.interval=often", "/metrics/serviceMonitor/interval"),
        ("watchNamespaces={Team_A}", "/watchNamespaces"),
        ("image.digest=latest", "/image/digest"),
        ("global.imageRegistry=https://registry.example", "/global/imageRegistry"),
        ("podDisruptionBudget.maxUnavailable=few", "/podDisruptionBudget/maxUnavailable"),
        ("ports.health=http", "/ports/health"),
        ("ports.progress=70000", "/ports/progress"),
        ("livenessProbe.period=1", "/livenessProbe"),
        ("networkPolicy.metricsFrom=all", "/networkPolicy/metricsFrom"),
        ("jobs.podDefaults.tolerations=all", "/jobs/podDefaults"),
        ("jobs.podDefaults.spec.priorityClassName=high", "/jobs/podDefaults/spec"),
        ("jobs.restrictions.hostAccess=forbidden", "/jobs/restrictions/hostAccess"),
        ("jobs.restrictions.secrets.labels.x=y", "/jobs/restrictions/secrets"),
        ("extraEnv[0].value=y", "/extraEnv/0"),
        ("extraVolumeMounts[0].name=x", "/extraVolumeMounts/0"),
        ("test.timeoutSeconds=0", "/test/timeoutSeconds"),
        ("test.resources.limits.memory=lots", "/test/resources/limits/memory"),
        ("resources.limit.memory=1Gi", "/resources"),
        ("fullnameOverride=1.op", "/fullnameOverride"),
        ("image=null", "image"),
    ],
)
def test_wrong_values_are_refused_by_name(helm: rendering.Command, value: str, named: str) -> None:
    assert named in refusal(helm, [value])


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("replicaCount=2", "replicas"),
        ("installCRDs=true", "crds.install"),
        ("env[0].name=X", "extraEnv"),
        ("volumes[0].name=X", "extraVolumes"),
        ("prometheus.enabled=true", "metrics"),
    ],
)
def test_names_of_other_charts_are_refused_with_the_name_here(
    helm: rendering.Command, value: str, name: str
) -> None:
    other = re.split(r"[=.\[]", value)[0]
    sentence = f"the value {other} has another name in this chart: write {name}\n"
    assert sentence in refusal(helm, [value])


@pytest.mark.parametrize(
    "values",
    [
        ("rbac.clusterRights=false", "watchNamespaces"),
        ("serviceAccount.create=false", "serviceAccount.name="),
        ("ports.progress=9000", "ports.health=9000"),
        ("metrics.serviceMonitor.enabled=true", "metrics.enabled=false"),
        ("metrics.prometheusRule.enabled=true", "metrics.enabled=false"),
        ("metrics.dashboard.enabled=true", "metrics.enabled=false"),
        ("metrics.serviceMonitor.enabled=true", "networkPolicy.enabled=true"),
        ("networkPolicy.metricsFrom[0].ipBlock.cidr=10.0.0.0/8", "metrics.enabled=false"),
        ("podDisruptionBudget.maxUnavailable=1", "podDisruptionBudget.minAvailable=1"),
        ("podDisruptionBudget.minAvailable=2", "replicas=2"),
        ("test.namespace=team-b", "watchNamespaces={team-a}"),
    ],
)
def test_values_that_contradict_each_other_are_refused_with_both_names(
    helm: rendering.Command, values: tuple[str, str]
) -> None:
    sentence = refusal(helm, values)
    first, second = (re.split(r"[=\[]", value)[0] for value in values)
    assert first in sentence
    assert second.replace("networkPolicy.enabled", "networkPolicy.metricsFrom") in sentence


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            ["extraEnv[0].name=TFPARALLEL_WORKERS"],
            "extraEnv has TFPARALLEL_WORKERS, which the chart sets",
        ),
        (["extraEnv[0].name=POD_NAME"], "extraEnv has POD_NAME, which the chart sets"),
        (
            ["commonLabels.app\\.kubernetes\\.io/name=mine"],
            "commonLabels has app.kubernetes.io/name, which the chart sets: remove it",
        ),
        (
            ["podLabels.app\\.kubernetes\\.io/instance=mine"],
            "podLabels has app.kubernetes.io/instance, which the chart sets: remove it",
        ),
        (
            ["metrics.dashboard.labels.team=a", "commonLabels.team=b"],
            "metrics.dashboard.labels has team, which commonLabels has, too: remove one",
        ),
        (["extraVolumes[0].name=tmp"], "extraVolumes has a second volume with the name tmp"),
        (
            ["extraVolumeMounts[0].name=keys", "extraVolumeMounts[0].mountPath=/keys"],
            "extraVolumeMounts has the volume keys and extraVolumes has not: add it there",
        ),
        (
            ["extraVolumeMounts[0].name=tmp", "extraVolumeMounts[0].mountPath=/tmp"],
            "choose another mountPath",
        ),
        (["image.repository=a.example:5000/op:1"], "write that to image.tag or image.digest"),
        (["trainer.image.repository=t@sha256:1"], "write that to trainer.image.tag or"),
        (
            [
                "jobs.podDefaults.spec.containers[0].name=tensorflow",
                "jobs.podDefaults.spec.containers[0].resources.limits.cpu=1",
            ],
            "has resources for the container tensorflow, and queues read those of jobs alone",
        ),
        (
            ["metrics.serviceMonitor.interval=1m", "metrics.serviceMonitor.scrapeTimeout=1m1s"],
            "scrapeTimeout is 1m1s and metrics.serviceMonitor.interval is 1m",
        ),
        (
            ["podDisruptionBudget.maxUnavailable=0", "replicas=2"],
            "podDisruptionBudget.maxUnavailable is 0: no node of an operator could be drained",
        ),
        (["podDisruptionBudget.minAvailable=100%", "replicas=2"], "minAvailable is 100% and"),
        (["livenessProbe.successThreshold=2"], "livenessProbe.successThreshold is 2"),
    ],
)
def test_what_no_cluster_would_take_is_refused_with_a_sentence(
    helm: rendering.Command, values: list[str], sentence: str
) -> None:
    assert sentence in refusal(helm, values)


@pytest.mark.parametrize("release", ["1op", "team.op"])
def test_a_release_whose_name_no_service_can_have_is_refused(
    helm: rendering.Command, release: str
) -> None:
    done = helm("template", release, str(paths.CHART))
    assert f"the name {release}-tfparallel-operator, which a Service cannot have" in done.stderr
    renamed = helm("template", release, str(paths.CHART), "--set=fullnameOverride=op")
    assert renamed.returncode == 0, renamed.stderr


def test_global_takes_what_has_a_meaning(helm: rendering.Command) -> None:
    sentence = refusal(helm, ["global.imageRegistri=registry.example"])
    assert "global.imageRegistri has no meaning here" in sentence


def umbrella(folder: pathlib.Path, condition: str = "") -> str:
    """A chart that has this one as a part, perhaps with a condition."""
    (folder / "charts").mkdir()
    (folder / "charts" / paths.CHART.name).symlink_to(paths.CHART)
    part = {"name": paths.CHART.name, "version": targets.version()}
    dependencies = [{**part, "condition": condition}] if condition else []
    about = {"apiVersion": "v2", "name": "platform", "version": "1.0.0"}
    (folder / "Chart.yaml").write_text(yaml.safe_dump({**about, "dependencies": dependencies}))
    return str(folder)


def test_as_a_part_of_another_chart_it_leaves_the_globals_of_others_alone(
    helm: rendering.Command, tmp_path: pathlib.Path
) -> None:
    values = "global.storageClass=fast,global.imageRegistry=registry.example"
    done = helm("template", "x", umbrella(tmp_path), "--set", values)
    assert done.returncode == 0, done.stderr
    image = rendering.container(rendering.Objects.parse(done.stdout))["image"]
    assert image == f"registry.example/{targets.OPERATOR.reference}"


def test_the_condition_of_a_parent_chart_switches_it_on_and_off(
    helm: rendering.Command, tmp_path: pathlib.Path
) -> None:
    chart = umbrella(tmp_path, "tfparallel-operator.enabled")
    counts = []
    for enabled in ("true", "false"):
        done = helm("template", "x", chart, f"--set=tfparallel-operator.enabled={enabled}")
        assert done.returncode == 0, done.stderr
        counts.append(len(rendering.Objects.parse(done.stdout).of_kind("Deployment")))
    assert counts == [1, 0]
    assert "enabled is false, which only a parent chart reads" in refusal(helm, ["enabled=false"])


def test_every_value_has_a_description_and_no_other_is_taken() -> None:
    schema = json.loads((paths.CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((paths.CHART / "values.yaml").read_text(encoding="utf-8"))
    readme = (paths.CHART / "README.md").read_text(encoding="utf-8")

    def compare(values: Any, schema: Any, above: tuple[str, ...]) -> None:
        if not above or not schema.get("description"):
            assert set(values) == set(schema["properties"])
            for name, node in schema["properties"].items():
                compare(values[name], node, (*above, name))
        else:
            assert f"| `{'.'.join(above)}` | " in readme

    compare(values, schema, ())


def test_the_version_has_one_source(helm: rendering.Command) -> None:
    shown = yaml.safe_load(helm("show", "chart", str(paths.CHART)).stdout)
    version = (paths.ROOT / "VERSION").read_text(encoding="utf-8").strip()
    assert shown["version"] == shown["appVersion"] == version
