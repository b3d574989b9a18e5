"""What is seen in the text of a user's module, and what the trainer checks."""

import pathlib
from typing import Any

import pytest

from testing import paths
from testing.operator import local_jobs as jobs
from tfparallel.job_source import source, user_module
from tfparallel_operator.api import load
from tfparallel_trainer.contract import user_module as interface

_MISSING = "no_such_package"


def _problems(folder: pathlib.Path, text: str, **files: str) -> list[str]:
    (folder / "model.py").write_text(text + "\n" + jobs.MODULE)
    for name, content in files.items():
        path = folder / name.replace("__", "/", 1)
        path.parent.mkdir(exist_ok=True)
        path.with_suffix(".py").write_text(content)
    return _folder_problems(folder)


def _folder_problems(folder: pathlib.Path) -> list[str]:
    files = user_module.files_of_folder(folder)
    return user_module.find_problems("model.py", files, interface.REQUIRED, has_packages=True)


def test_a_package_that_is_missing_is_named_with_its_line(tmp_path: pathlib.Path) -> None:
    text = f"import json, {_MISSING}.deep\nfrom pydantic import x\nfrom other_one import y"
    first, second = _problems(tmp_path, f'"""About."""\n{text}')
    assert first == (
        f"model.py:2: imports '{_MISSING}.deep', and this Python has no package '{_MISSING}':"
        " correct the name, or install it"
    )
    assert second.startswith("model.py:4: imports 'other_one', and")


@pytest.mark.parametrize(
    "text",
    [
        f"try:\n    import {_MISSING}\nexcept ImportError:\n    pass",
        f"if TYPE_CHECKING:\n    import {_MISSING}",
        f"def build():\n    import {_MISSING}",
        f"import sys\nsys.path += ['x']\nimport {_MISSING}",
        f"import sys\nsys.path.insert(0, 'x')\nimport {_MISSING}",
        f"from sys import path\npath[:0] = ['x']\nimport {_MISSING}",
        f"import os\nos.system('pip install it')\nimport {_MISSING}",
        f"import helper\nimport {_MISSING}",
        f"from package import part\nimport {_MISSING}",
        f"try:\n    import helper\nfinally:\n    pass\nimport {_MISSING}",
        f"import compiled\nfrom . import {_MISSING}",
        "import data.labels, helper\nfrom tensorflow_that_lies_here import x",
    ],
)
def test_what_may_be_there_when_the_module_runs_is_left_to_it(
    tmp_path: pathlib.Path, text: str
) -> None:
    (tmp_path / "compiled.cpython-311-x86_64-linux-gnu.so").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "tensorflow_that_lies_here").mkdir()
    changes = "import sys\nsys.path.append('x')\n"
    assert _problems(tmp_path, text, helper=changes, package____init__=changes) == []


def test_nothing_runs_between_imports_so_later_ones_are_looked_up(tmp_path: pathlib.Path) -> None:
    text = f"import helper\nSIZE = 3\ndef f(x=SIZE):\n    return g(x)\nimport {_MISSING}"
    [problem] = _problems(tmp_path, text, helper="import json\nimport model\n")
    assert problem.startswith("model.py:5: imports")


def test_the_users_files_are_followed(tmp_path: pathlib.Path) -> None:
    [problem] = _problems(tmp_path, "import helper", helper=f"import json\nimport {_MISSING}\n")
    assert problem.startswith(f"helper.py:2: imports '{_MISSING}'")
    [problem] = _problems(tmp_path, "import helper", helper="x = (\n")
    assert problem.startswith("helper.py:1: received 'x = ('; SyntaxError: '(' was never closed")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            b"import json\ndef f(:\n    pass\n",
            "model.py:2: received 'def f(:'; SyntaxError: invalid syntax: correct the line",
        ),
        (
            b"if x:\nreturn 3\n",
            "model.py:2: received 'return 3'; IndentationError: expected an indented block after"
            " 'if' statement on line 1: correct the line",
        ),
        (
            b"return 3\n",
            "model.py:1: received 'return 3'; SyntaxError: 'return' outside function: correct the"
            " line",
        ),
    ],
)
def test_what_is_not_python_is_named_with_its_line(
    tmp_path: pathlib.Path, content: bytes, sentence: str
) -> None:
    (tmp_path / "model.py").write_bytes(content)
    assert _folder_problems(tmp_path) == [sentence]


@pytest.mark.parametrize("content", [b"x = '\xff'\n", b"x = 1\x00\n"])
def test_bytes_that_are_no_text_are_refused(tmp_path: pathlib.Path, content: bytes) -> None:
    (tmp_path / "model.py").write_bytes(content)
    [problem] = _folder_problems(tmp_path)
    assert problem.startswith("model.py")
    assert problem.endswith("correct the file") or problem.endswith("correct the line")


def test_a_function_that_is_missing_is_named_with_a_near_name(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.py").write_text("def build_modle(): ...\n# training_data\n")
    assert _folder_problems(tmp_path) == [
        "model.py: the function build_model is missing; rename build_modle, or define it: it"
        " returns the keras.Model",
        "model.py: the function training_data is missing; define it: it returns the examples to"
        " train on",
    ]


def test_a_function_with_its_earlier_name_is_refused_with_the_new_name(
    tmp_path: pathlib.Path,
) -> None:
    text = "def build_model(): ...\ndef training_data(): ...\ndef layer_ways(): ...\n"
    (tmp_path / "model.py").write_text(text)
    assert _folder_problems(tmp_path) == [
        "model.py: the function layer_ways is now called layer_shardings; rename it"
    ]
    (tmp_path / "model.py").write_text(f"{text}layer_shardings = layer_ways\n")
    assert _folder_problems(tmp_path) == []


def test_a_function_of_another_frameworks_name_is_named(tmp_path: pathlib.Path) -> None:
    text = "from loading import train_data\ndef create_model(): ...\nprint(create_model())\n"
    (tmp_path / "model.py").write_text(text)
    (tmp_path / "loading.py").touch()
    assert _folder_problems(tmp_path) == [
        "model.py: the function build_model is missing; rename create_model, or define it: it"
        " returns the keras.Model",
        "model.py: the function training_data is missing; rename train_data, or define it: it"
        " returns the examples to train on",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "from helper import build_model, training_data",
        "from helper import *",
        "def __getattr__(name): ...",
        "globals()['build_model'] = globals()['training_data'] = print",
        "import sys\nsys.modules[__name__].__dict__.update({})",
        "build_model = training_data = lambda: 3",
        "if 1:\n    def build_model(): ...\ntry:\n    import b as training_data\nexcept E: ...",
        "for build_model in (1,): ...\nwith open('x') as training_data: ...",
        "def define():\n    global build_model, training_data\n    build_model = training_data = 3",
        "(build_model := 3)\n[training_data := x for x in (1,)]",
        "match x:\n    case {'a': build_model, **training_data}: ...",
    ],
)
def test_functions_may_be_bound_in_any_way(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "model.py").write_text(text)
    (tmp_path / "helper.py").touch()
    assert _folder_problems(tmp_path) == []


def _job(**fields: Any) -> dict[str, Any]:
    return jobs.job({"Chief": {}}, trainer={"epochs": 1}, **fields)


def test_a_run_is_refused_before_anything_starts(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.py").write_text(f"import {_MISSING}\ndef build_model(): ...\n")
    with pytest.raises(load.SpecError) as caught:
        source.read(jobs.write(tmp_path, _job()))
    assert [problem.split(" ")[0] for problem in caught.value.problems] == [
        "model.py:1:",
        "model.py:",
    ]


def test_a_module_in_a_config_map_is_checked_with_the_files_next_to_it(
    tmp_path: pathlib.Path,
) -> None:
    job = jobs.job({"Chief": {}}, trainer={"epochs": 1, "source": {"configMap": {"name": "code"}}})
    text = f"import helper, beside, {_MISSING}\n{jobs.MODULE}"
    files = {"model.py": text, "helper.py": ""}
    (tmp_path / "beside.py").touch()
    config_map = {"kind": "ConfigMap", "metadata": {"name": "code"}, "data": files}
    with pytest.raises(load.SpecError, match=rf"^model\.py:1: imports '{_MISSING}'"):
        source.read(jobs.write(tmp_path, job, config_map))


@pytest.mark.parametrize(
    ("environment", "container", "is_refused"),
    [
        ({}, {"env": [{"name": "A", "value": "1"}]}, True),
        ({"PYTHONPATH": "/elsewhere"}, {}, False),
        ({}, {"env": [{"name": "PYTHONPATH", "value": "/elsewhere"}]}, False),
        ({}, {"workingDir": "/elsewhere"}, False),
        ({}, {"command": ["true"]}, False),
    ],
)
def test_packages_that_may_lie_elsewhere_are_not_looked_up(
    tmp_path: pathlib.Path,
    environment: dict[str, str],
    container: dict[str, object],
    *,
    is_refused: bool,
) -> None:
    (tmp_path / "model.py").write_text(f"import {_MISSING}\n{jobs.MODULE}")
    template = {"spec": {"containers": [{"name": "tensorflow", **container}]}}
    job = jobs.job({"Chief": {"template": template}}, trainer={"epochs": 1})
    file = jobs.write(tmp_path, job)
    if not is_refused:
        source.read(file, environment=environment)
        return
    with pytest.raises(load.SpecError, match=_MISSING):
        source.read(file, environment=environment)


def test_a_strategy_of_the_users_needs_its_function(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.py").write_text(jobs.MODULE)
    with pytest.raises(load.SpecError, match="the function build_strategy is missing"):
        source.read(jobs.write(tmp_path, _job(strategy="Custom")))


def test_every_example_and_template_passes() -> None:
    for file in sorted(jobs_with_modules()):
        source.read(file)


def jobs_with_modules() -> list[pathlib.Path]:
    """The job files of the examples whose trainer reads a module next to them."""
    return [
        file
        for file in paths.EXAMPLES.glob("*/*.yaml")
        if "TFParallelJob" in (text := file.read_text()) and "module:" in text
    ]
