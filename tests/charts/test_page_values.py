"""The chart takes the values that the pages show, and does with them what the pages say."""

import json
import pathlib
from typing import Any

import pytest
import yaml

from testing import pages, paths
from testing.operator import builders, rendering
from tfparallel_operator.core import installation, layout
from tfparallel_operator.engine.run import settings

pytestmark = pytest.mark.timeout(1200)  # the first run builds helm and kubectl

VALUES = [
    (page, number)
    for page in ("openshift", "isolation", "pod-defaults")
    for number, block in enumerate(pages.blocks(paths.PAGES / f"operate/{page}.md", "yaml"))
    if "jobs" in yaml.safe_load(block)
]


def render(helm: rendering.Command, folder: pathlib.Path, page: str, number: int) -> Any:
    """What the chart renders with a block of a page."""
    block = pages.blocks(paths.PAGES / f"operate/{page}.md", "yaml")[number]
    file = folder / "values.yaml"
    file.write_text(block)
    done = helm("template", "x", str(paths.CHART), f"--values={file}")
    assert done.returncode == 0, done.stderr
    return rendering.Objects.parse(done.stdout)


def read_settings(objects: Any, monkeypatch: pytest.MonkeyPatch) -> settings.Settings:
    """The settings of the operator that is rendered."""
    for name, value in rendering.environment(objects).items():
        monkeypatch.setenv(name, value)
    return settings.Settings.from_environment()


@pytest.mark.parametrize(("page", "number"), VALUES)
def test_the_chart_takes_the_values_of_the_page(
    helm: rendering.Command,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    page: str,
    number: int,
) -> None:
    operator = read_settings(render(helm, tmp_path, page, number), monkeypatch)
    assert operator.pod_defaults or operator.restrictions != installation.Restrictions()


def test_on_openshift_no_pod_names_a_user(
    helm: rendering.Command, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = render(helm, tmp_path, "openshift", 0)
    of_operator = objects.one("Deployment")["spec"]["template"]["spec"]["securityContext"]
    assert of_operator == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    of_test = next(pod for pod in objects.of_kind("Pod"))["spec"]["securityContext"]
    assert of_test == of_operator
    operator = read_settings(objects, monkeypatch)
    of_jobs = installation.InstallationSettings(
        trainer_image=operator.trainer_image, pod_defaults=operator.pod_defaults
    )
    job = builders.a_job(trainer=True, worker=1)
    [replica] = layout.build(job).all_replicas
    pod = builders.a_pod(job, replica, of_jobs)
    assert "runAsUser" not in json.dumps(pod)
    assert pod["spec"]["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
