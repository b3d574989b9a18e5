"""The page on TFJob, docs/tfjob.md, against what `tfparallel convert` does."""

import re

from testing.operator import tfjobs as jobs
from tfparallel.cli import convert
from tfparallel.convert import differences, template


def test_the_page_shows_every_difference() -> None:
    page = (jobs.ROOT / "docs/tfjob.md").read_text()
    assert differences.table() in page


def test_the_example_of_the_page_is_what_convert_makes() -> None:
    page = (jobs.ROOT / "docs/tfjob.md").read_text()
    before, after = page.split("<!-- convert -->\n")[1:3]
    given = before.split("```yaml\n")[1].split("```")[0]
    wanted = after.split("```yaml\n")[1].split("```")[0]
    result = jobs.run("-", given=given)
    assert result.stdout == wanted
    told = after.split("```console\n")[1].split("```")[0]
    notices = result.stderr.replace("standard input", "mnist.yaml")
    assert told == f"$ tfparallel convert mnist.yaml > job.yaml\n{notices}"


def test_the_labels_of_the_page_are_those_that_are_renamed() -> None:
    page = (jobs.ROOT / "docs/tfjob.md").read_text()
    for old, new in template.LABELS.items():
        if old.startswith(template.OLD_PREFIX):
            assert f"| `{old}` | `{new}` |" in page


def test_the_metrics_that_stand_for_those_of_tfjob_exist() -> None:
    page = (jobs.ROOT / "docs/tfjob.md").read_text()
    told = set(re.findall(r"`(tfparallel_[a-z_]+)", page))
    assert told == {"tfparallel_jobs_started_total", "tfparallel_jobs_ended_total"} | {
        "tfparallel_job_restarts_total"
    }
    listed = (jobs.ROOT / "docs/metrics.md").read_text()
    assert all(f"| `{name}` |" in listed for name in told)


def test_every_option_of_convert_is_listed() -> None:
    page = (jobs.ROOT / "docs/tfjob.md").read_text()
    for option in convert.command.params:
        for choice in getattr(option.type, "choices", ()):
            assert f"| `{option.opts[0]} {choice}` |" in page
