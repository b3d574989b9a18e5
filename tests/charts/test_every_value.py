"""Each value of the chart changes what is rendered, and none has to be there."""

import functools
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from testing import paths
from testing.operator import rendering

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

EVERYTHING: dict[str, Any] = {
    "affinity": {"nodeAffinity": {}},
    "metrics": {
        "serviceMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboard": {"enabled": True},
    },
    "networkPolicy": {"enabled": True, "metricsFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
    "replicas": 3,
}
"""With these values, every other one has an effect."""
SAMPLES = {
    **dict.fromkeys(
        (
            "metrics.enabled",
            "metrics.dashboard.enabled",
            "metrics.prometheusRule.enabled",
            "metrics.serviceMonitor.enabled",
            "networkPolicy.enabled",
        ),
        False,
    ),
    "extraArgs": ["--x"],
    "extraVolumeMounts": [{"name": "x", "mountPath": "/x"}],
    "fullnameOverride": "other",
    "image.digest": f"sha256:{'a' * 64}",
    "gangScheduling.scheduler": "Volcano",
    "image.pullPolicy": "Always",
    "jobs.restrictions": {"hostAccess": "Forbidden"},
    "logFormat": "text",
    "rbac.clusterRights": False,
    "resources": {"limits": {"cpu": 7}},
    "test.resources": {"limits": {"cpu": 7}},
    "trainer.image.digest": f"sha256:{'b' * 64}",
    "watchNamespaces": ["team-a"],
}
ALONE: dict[str, dict[str, Any]] = {
    "extraVolumeMounts": {"extraVolumes": [{"name": "x"}]},
    "metrics.enabled": {"metrics": {}, "networkPolicy": {}},
    "networkPolicy": {"metrics": {}},
    "networkPolicy.metricsFrom": {"metrics": {}},
    "rbac.clusterRights": {"watchNamespaces": ["team-a"]},
    "serviceAccount.create": {"serviceAccount": {"name": "mine"}},
}
"""What a value needs next to it, or in the place of EVERYTHING."""


VALUES = yaml.safe_load((paths.CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((paths.CHART / "values.schema.json").read_text(encoding="utf-8"))

Path = tuple[str, ...]


def described(node: Any, above: Path = ()) -> list[Path]:
    """The paths of the values that have a description."""
    if "description" in node:
        return [above]
    return [
        path
        for name, inner in node["properties"].items()
        for path in described(inner, (*above, name))
    ]


def another(path: Path, default: Any) -> Any:
    """A value that differs from the default."""
    name = ".".join(path)
    if name in SAMPLES:
        return SAMPLES[name]
    match default:
        case bool():
            return not default
        case int():
            return default + 1
        case str():
            return "10s" if path[-1] in ("interval", "scrapeTimeout") else "2"
        case list():
            return [{"name": "x"}]
        case _:
            field = {"jobs.podDefaults": "metadata", "livenessProbe": "failureThreshold"}
            field["readinessProbe"] = "failureThreshold"
            value = {"metadata": {}, "failureThreshold": 7}
            return {field[name]: value[field[name]]} if name in field else {"x": "changed"}


@pytest.mark.parametrize("path", described(SCHEMA), ids=".".join)
def test_every_value_has_an_effect(
    helm: rendering.Command, path: Path, tmp_path: pathlib.Path
) -> None:
    name = ".".join(path)
    files = [tmp_path / "before.yaml", tmp_path / "after.yaml"]
    before = {**EVERYTHING, **ALONE.get(name, {})}
    value = another(path, functools.reduce(lambda node, key: node[key], path, VALUES))
    change: Any = value
    for key in reversed(path):
        change = {key: change}
    files[0].write_text(yaml.safe_dump(before))
    files[1].write_text(yaml.safe_dump(change))
    command = ("template", "x", str(paths.CHART), f"--values={files[0]}")
    default, changed = helm(*command), helm(*command, f"--values={files[1]}")
    assert default.returncode == changed.returncode == 0, default.stderr + changed.stderr
    assert default.stdout != changed.stdout


def everything(node: dict[str, Any], above: Path = ()) -> Iterator[Path]:
    """The paths of all values, of groups of them, and of parts of them."""
    for name, inner in node.items():
        yield (*above, name)
        if isinstance(inner, dict):
            yield from everything(inner, (*above, name))


@pytest.mark.parametrize("path", list(everything(VALUES)), ids=".".join)
def test_without_a_value_the_chart_renders_or_its_schema_names_it(
    helm: rendering.Command, path: Path, tmp_path: pathlib.Path
) -> None:
    """As Helm leaves out those that the chart of the last release did not have."""
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({**EVERYTHING, **ALONE.get(".".join(path), {})}))
    missing: Any = None
    for key in reversed(path):
        missing = {key: missing}
    removal = tmp_path / "removal.yaml"
    removal.write_text(yaml.safe_dump(missing))
    files = (f"--values={file}", f"--values={removal}")
    done = helm("template", "x", str(paths.CHART), *files)
    if done.returncode == 0:
        assert rendering.Objects.parse(done.stdout).of_kind("Deployment")
    else:
        assert f"missing property '{path[-1]}'" in done.stderr
