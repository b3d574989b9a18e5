"""The notebook of the examples, its cells run as Jupyter runs them: under a loop that runs.

Jupyter itself would bring some fifty packages and sockets to test what its kernel does to us: code
of one cell after the other, in one namespace, called from a running event loop. It shows the value
of a cell's last line, and keeps the source of cells for `inspect`.
"""

import json
import pathlib
import shutil
import sys

import pytest

from testing import invocation, pages, paths

_NOTEBOOK = paths.ROOT / "examples/notebook/train.ipynb"

_KERNEL = """
import ast, asyncio, json, linecache, sys

def show(value):
    if value is not None:
        print(value._repr_html_() if hasattr(value, "_repr_html_") else repr(value))

async def run():
    namespace = {"__name__": "__main__"}
    for cell in json.load(open("train.ipynb"))["cells"]:
        if cell["cell_type"] == "code":
            source, name = "".join(cell["source"]), cell["id"]
            linecache.cache[name] = (len(source), None, source.splitlines(True), name)
            tree = ast.parse(source)
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, name, "exec"), namespace)
            if last is not None:
                show(eval(compile(ast.Expression(last.value), name, "eval"), namespace))

asyncio.run(run())
"""


@pytest.mark.long  # tests/docs/test_python_client_page.py makes the same calls, without a loop
@pytest.mark.usefixtures("processes")
def test_the_notebook_trains_on_this_machine(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "notebook"
    folder.mkdir()
    shutil.copy(_NOTEBOOK, folder)
    done = invocation.execute(sys.executable, "-W", "error", "-c", _KERNEL, folder=folder)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    [shown] = pages.blocks(_NOTEBOOK.with_name("README.md"), "text")
    assert all(line in done.stdout for line in shown.splitlines())
    lines = done.stdout.splitlines()
    assert lines[0].startswith('<div><b>train-digits</b> <b style="color: inherit">Pending</b>')
    assert 0 < float(lines[1]) < 1  # the loss
    assert "Succeeded</b>" in lines[2]
    assert '<progress value="290" max="290"></progress> step 290/290 (100%)' in lines[2]
    assert lines[3] == "4810"  # parameters of the model, which the last cells have loaded
    assert (folder / "train-digits-model/model.keras").is_file()


def test_the_notebook_holds_no_outputs() -> None:
    cells = json.loads(_NOTEBOOK.read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
