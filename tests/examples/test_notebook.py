"""The notebook of the examples, its cells run as Jupyter runs them: under a loop that runs.

Jupyter itself would bring some fifty packages and sockets to test what its kernel does to us: code
of one cell after the other, in one namespace, called from a running event loop.
"""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

from testing import pages, paths

_NOTEBOOK = paths.ROOT / "examples/notebook/train.ipynb"

_KERNEL = """
import asyncio, json, sys

async def run():
    namespace = {"__name__": "__main__"}
    for cell in json.load(open("train.ipynb"))["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), namespace)

asyncio.run(run())
"""


@pytest.mark.usefixtures("processes")
def test_the_notebook_trains_on_this_machine(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "notebook"
    folder.mkdir()
    shutil.copy(_NOTEBOOK, folder)
    shutil.copytree(paths.ROOT / "examples/digits", tmp_path / "digits")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _KERNEL],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    [shown] = pages.blocks(_NOTEBOOK.with_name("README.md"), "text")
    assert all(line in done.stdout for line in shown.splitlines())
    assert len(list(folder.glob("runs/digits/*/claims/digits/digits/model.keras"))) == 1


def test_the_notebook_holds_no_outputs() -> None:
    cells = json.loads(_NOTEBOOK.read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
