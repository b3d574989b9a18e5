"""Tutorials of others train as jobs: as published with Keras 2, with changed lines with Keras 3."""

import pathlib
import re

import pytest
import yaml

from testing import invocation, paths
from testing.operator import local_jobs as jobs
from testing.trainer import cases_tutorials as cases

pytestmark = [pytest.mark.usefixtures("processes"), pytest.mark.timeout(1800)]

ORDINARY = "mirrored_fit"
of_every_tutorial = pytest.mark.parametrize(
    "tutorial", cases.ALL, ids=lambda tutorial: tutorial.name
)


def run(
    tutorial: cases.Tutorial, script: str, folder: pathlib.Path, **container: object
) -> list[str]:
    """Run a script with the replicas of its tutorial; return what it came to, of each process."""
    (folder / "train.py").write_text(script, encoding="utf-8")
    template = jobs.template(["python", "train.py", *tutorial.arguments], **container)
    roles = {
        role: {"replicas": count, "template": template} for role, count in tutorial.replicas.items()
    }
    file = jobs.write(folder, jobs.job(roles))
    together = [] if "PS" in tutorial.replicas else jobs.ending_together(file, folder)
    done = invocation.run("run", file, "--output", folder / "out", *together, timeout=900)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return re.findall(r"^\[[\w-]+\] ((?:accuracy|loss) \d.*)$", done.stdout, re.M)


def assert_learned(tutorial: cases.Tutorial, lines: list[str]) -> None:
    """Check what each process that trains has come to, in its last line."""
    trains = tutorial.replicas.get("Chief", tutorial.replicas["Worker"])
    assert len(lines) >= trains
    for line in lines[-trains:]:
        name, *figures = re.findall(r"accuracy|loss|\d+\.\d+", line)
        if name == "accuracy":
            assert float(figures[0]) > tutorial.accuracy
        else:
            assert float(figures[1]) < float(figures[0])


@pytest.mark.parametrize(
    "tutorial",
    [
        pytest.param(
            tutorial,
            marks=[] if tutorial.name == ORDINARY else [pytest.mark.long],
            id=tutorial.name,
        )
        for tutorial in cases.ALL
    ],
)
def test_a_tutorial_trains_with_keras_3(tutorial: cases.Tutorial, tmp_path: pathlib.Path) -> None:
    assert_learned(tutorial, run(tutorial, tutorial.keras_3, tmp_path))


@pytest.mark.long
@of_every_tutorial
def test_a_tutorial_trains_with_keras_2_as_published(
    tutorial: cases.Tutorial, tmp_path: pathlib.Path
) -> None:
    page = (paths.PAGES / "how-to/old-scripts.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```yaml\n(env:.*?)```", page, flags=re.DOTALL)
    lines = run(tutorial, tutorial.published, tmp_path, **yaml.safe_load(block))
    assert_learned(tutorial, lines)
