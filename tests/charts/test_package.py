"""The chart as a package that registries take."""

import pathlib

import pytest

from images import targets
from release import __main__ as command
from testing.operator import rendering

pytestmark = pytest.mark.timeout(1200)  # the first run builds helm and kubectl


def test_the_packaged_chart_renders_what_the_folder_does(
    helm: rendering.Command, tmp_path: pathlib.Path
) -> None:
    assert command.main(["--chart", f"--folder={tmp_path / 'chart'}"]) == 0
    [package] = (tmp_path / "chart").iterdir()
    assert package.name == f"tfparallel-operator-{targets.OPERATOR.version}.tgz"
    values = "metrics.prometheusRule.enabled=true,metrics.dashboard.enabled=true"
    packaged = helm("template", "x", str(package), "--set", values)
    assert packaged.returncode == 0, packaged.stderr
    assert packaged.stdout == helm("template", "x", str(rendering.CHART), "--set", values).stdout
