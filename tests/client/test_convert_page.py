"""The pages on TFJob and TrainJob against what `tfparallel convert` does."""

import pathlib
import re

import pytest

from testing import pages, paths
from testing.operator import tfjobs as jobs
from tfparallel.convert import conversion, file_conversion, template

PAGES = {"how-to/tfjob.md": file_conversion.TFJOB, "how-to/trainjob.md": file_conversion.TRAINJOB}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_every_difference(page: str) -> None:
    text, kind = (paths.PAGES / page).read_text(), PAGES[page]
    special = [row for row in kind.differences if not row.value.is_general]
    general = [row for row in kind.differences if row.value.is_general]
    _, section_of_all = kind.section.value
    for heading, rows in (("What is different", special), (section_of_all, general)):
        section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
        assert conversion.table(rows, kind.name) in section


def test_the_severities_are_explained_once() -> None:
    text = (paths.PAGES / "how-to/tfjob.md").read_text(encoding="utf-8")
    for severity, meaning in conversion.MEANINGS.items():
        assert f"| {severity} | {meaning} |" in text


@pytest.mark.parametrize("page", PAGES)
def test_the_example_of_a_page_is_what_convert_writes(
    page: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = paths.PAGES / page
    before, *outputs = pages.blocks(file, "yaml")
    [shown] = [
        block
        for block in pages.blocks(file, "console")
        if block.startswith("$ tfparallel convert mnist.yaml >")
    ]
    (tmp_path / "mnist.yaml").write_text(before)
    result = jobs.run("mnist.yaml")
    assert result.stdout == outputs[0]
    assert shown == f"$ tfparallel convert mnist.yaml > job.yaml\n{result.stderr}"


def test_the_diff_of_the_page_is_what_convert_prints(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = paths.PAGES / "how-to/tfjob.md"
    (tmp_path / "mnist.yaml").write_text(pages.blocks(page, "yaml")[0])
    assert jobs.run("--diff", "mnist.yaml").stdout == pages.blocks(page, "diff")[1]


def test_the_labels_of_the_page_are_those_that_are_renamed() -> None:
    page = (jobs.ROOT / "docs/how-to/tfjob.md").read_text()
    for old, new in template.LABELS.items():
        if old.startswith(template.OLD_PREFIX):
            assert f"| `{old}` | `{new}` |" in page


def test_the_metrics_that_stand_for_those_of_tfjob_exist() -> None:
    page = (jobs.ROOT / "docs/how-to/tfjob.md").read_text()
    shown = set(re.findall(r"`(tfparallel_[a-z_]+)", page))
    assert shown == {"tfparallel_jobs_started_total", "tfparallel_jobs_ended_total"} | {
        "tfparallel_job_restarts_total"
    }
    listed = (jobs.ROOT / "docs/operate/metrics.md").read_text()
    assert all(f"| `{name}` |" in listed for name in shown)
