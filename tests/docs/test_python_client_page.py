"""Runs the blocks of docs/how-to/python-client.md in their order; its tables list what is there."""

import pathlib
import shutil
import sys

import pytest

from testing import invocation, pages, paths
from tfparallel import manifest
from tfparallel.backends.local import folders

_PAGE = paths.PAGES / "how-to/python-client.md"


@pytest.mark.usefixtures("processes")
def test_the_code_of_the_page_runs(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "digits"
    folder.mkdir()
    shutil.copy(paths.ROOT / "examples/digits/model.py", folder)
    script = folder / "page.py"
    script.write_text("\n".join(pages.blocks(_PAGE, "python")))
    done = invocation.execute(sys.executable, "-W", "error", script.name, folder=folder)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    shown = done.stdout.splitlines()
    assert shown[0] == "train-digits Pending"
    assert "Succeeded 2/2" in shown
    assert "models/model.keras" in shown
    assert (folder / "models/model.keras").is_file()
    assert [line for line in shown if "did you mean 'train-digits'?" in line]
    assert shown[-1] == "0"
    assert "train-digits: Succeeded, 2/2 replicas, step 87/87 (100%), loss" in done.stderr


def test_the_page_lists_every_option() -> None:
    listed = [
        row[0]
        for row in pages.rows("how-to/python-client.md", "Each option sets a field of the job:")
    ]
    assert listed == list(manifest.Options.__annotations__)


def test_the_page_lists_the_files_of_a_run() -> None:
    rows = pages.rows("how-to/local.md", "or the folder given with `--output`:")
    listed = {row[0] for row in rows}
    assert {folders.STATUS_FILE, folders.EVENTS_FILE, folders.PODS_FILE} <= listed
