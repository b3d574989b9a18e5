"""A function as a program: what travels, and what is refused with a sentence."""

import dataclasses
import enum
import functools
import json
import linecache
import pathlib
import runpy
import sys
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tfparallel import submission
from tfparallel.functions import job, program
from tfparallel_operator.api import load, names

BATCH = 64


def write(results: pathlib.Path, *, text: Any = "", number: "int | Missing" = 2) -> None:  # type: ignore[name-defined]  # noqa: F821
    """Annotations, such as Missing, are not evaluated."""
    import json

    shown: Missing = [text for _ in range(number)]  # type: ignore[name-defined]  # noqa: F821
    (results / "written.json").write_text(json.dumps(shown))


def run(function: object, arguments: Any, folder: pathlib.Path) -> Any:
    """Run the program of a function as a replica does, and return what it has written."""
    built = program.build(function, arguments)
    file = folder / program.FILE
    file.write_text(built.text)
    argv = sys.argv
    sys.argv = [str(file), str(folder)]
    try:
        runpy.run_path(str(file), run_name="__main__")
    finally:
        sys.argv = argv
    return json.loads((folder / "written.json").read_text())


def test_a_program_calls_the_function_with_its_arguments(tmp_path: pathlib.Path) -> None:
    assert run(write, {"text": 'it\'s "quoted"\n', "number": 1}, tmp_path) == ['it\'s "quoted"\n']
    assert program.build(write, {}).takes_results
    assert not program.build(write, {"results": "/mnt/mine"}).takes_results


@pytest.mark.parametrize("text", [None, True, -1, 2.5, "ü", [1, [2]], {"a": {"b": [None]}}, [], {}])
def test_data_arrives_as_it_is(text: Any, tmp_path: pathlib.Path) -> None:
    assert run(write, {"text": text, "number": 1}, tmp_path) == [text]


def test_tuples_sets_and_bytes_are_data_too() -> None:
    text = program.build(write, {"text": {"pair": (1, b"x"), 3: {4}}}).text
    assert "text={'pair': (1, b'x'), 3: {4}}" in text


def make_nested() -> Callable[[pathlib.Path], None]:
    def inner(results: pathlib.Path) -> None:
        text = """
two lines
"""

        def again(depth: int) -> int:
            return again(depth - 1) if depth else len(text.split())

        import json

        (results / "written.json").write_text(json.dumps([text, again(2)]))

    return inner


def test_a_function_within_a_function_keeps_its_text(tmp_path: pathlib.Path) -> None:
    assert run(make_nested(), {}, tmp_path) == ["\ntwo lines\n", 2]


def test_a_function_of_a_notebook_has_the_source_of_its_cell(tmp_path: pathlib.Path) -> None:
    """IPython keeps the text of each cell in linecache, under the name that it compiles it with."""
    cell = "def train(results):\n    (results / 'written.json').write_text('1')\n"
    keep_source(cell, "<cell 3>")
    assert run(define(cell, "<cell 3>"), {}, tmp_path) == 1


def keep_source(cell: str, name: str) -> None:
    linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)


def define(cell: str, name: str) -> Any:
    """Run a cell, and return its function."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(cell, name, "exec"), namespace)  # noqa: S102 (as a notebook does)
    return namespace["train"]


def uses_a_module(results: Any) -> None:
    results.write_text(json.dumps(1))


def uses_a_renamed_module() -> None:
    linecache_of_python.getline("a", 1)


import linecache as linecache_of_python  # noqa: E402


def uses_a_value() -> int:
    return BATCH


def uses_a_default(size: int = BATCH) -> int:
    return size


def uses_another_function() -> Any:
    return make_nested()


def uses_a_class_of_a_module() -> Any:
    return pathlib_path("x")


from pathlib import Path as pathlib_path  # noqa: E402, N813


def uses_what_is_missing() -> Any:
    return missing  # type: ignore[name-defined]  # noqa: F821


def make_closure(size: int) -> Callable[[], int]:
    def train() -> int:
        return size

    return train


class Trainer:
    def train(self) -> None: ...


class Color(enum.Enum):
    RED = 1


@functools.cache
def cached() -> None: ...


def keep(function: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(function)
    def kept() -> None:
        function()

    return kept


@keep
def decorated() -> None: ...


async def coroutine() -> None: ...


def generator() -> Any:
    yield 1


LAMBDA = lambda: None  # noqa: E731


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (uses_a_module, "uses what it does not define: 'json' (write `import json` in it)."),
        (uses_a_renamed_module, "`import linecache as linecache_of_python`"),
        (uses_a_value, "'BATCH' (pass it in func_args). A function travels alone"),
        (uses_a_default, "'BATCH' (pass it in func_args)"),
        (uses_another_function, "'make_nested' (define it inside)"),
        (uses_a_class_of_a_module, "(write `from pathlib import Path as pathlib_path` in it)"),
        (uses_what_is_missing, "'missing' (which is not defined)"),
        (make_closure(3), "train uses what it does not define: 'size' (pass it in func_args)"),
        (LAMBDA, "received a lambda. Define a function with def"),
        (Trainer().train, "received the method Trainer.train, whose object does not travel"),
        (Trainer, "received Trainer, which is not a function"),
        (functools.partial(write), "received partial, which is not a function"),
        (print, "received builtin_function_or_method, which is not a function"),
        (cached, "received _lru_cache_wrapper, which is not a function"),
        (decorated, "decorated has the decorator @keep, which does not travel"),
        (coroutine, "coroutine is a coroutine, which trains nothing when it is called"),
        (generator, "generator is a generator, which trains nothing when it is called"),
        (
            define("def train(): pass", "<none>"),
            "the source of train cannot be read. Define the function in a",
        ),
    ],
)
def test_a_function_that_cannot_travel_is_refused(function: Any, sentence: str) -> None:
    with pytest.raises(load.SpecError) as refusal:
        program.build(function, {})
    assert str(refusal.value).startswith("func: ")
    assert sentence in str(refusal.value)


def test_a_definition_that_has_changed_is_refused() -> None:
    keep_source("def train(size):\n    pass\n", "<cell 4>")
    with pytest.raises(load.SpecError, match="has changed since Python read it"):
        program.build(define("def train():\n    pass\n", "<cell 4>"), {})


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@dataclasses.dataclass
class Data:
    size: int


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([1], "func_args: received list: give a dictionary with the arguments by their names"),
        ({"word": 1}, "got an unexpected keyword argument 'word'. Give each argument that has no"),
        ({"text": Data(1)}, "func_args['text']: received tests.client.test_functions.Data, and"),
        ({"text": [1, {"a": Color.RED}]}, "func_args['text'][1]['a']: received"),
        ({"text": {Color.RED: 1}}, "a key of func_args['text']: received"),
        ({"text": float("nan")}, "func_args['text']: received nan, and arguments are data"),
        ({"text": CIRCLE}, "func_args['text'][0]: received what holds itself"),
        ({"text": pathlib.Path("x")}, "func_args['text']: received pathlib.PosixPath"),
        ({"text": write}, "func_args['text']: received function"),
    ],
)
def test_what_is_no_data_is_refused(arguments: Any, sentence: str) -> None:
    with pytest.raises(load.SpecError) as refusal:
        program.build(write, arguments)
    assert sentence in str(refusal.value)


def needs_size(size: int) -> None: ...


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(load.SpecError, match=r"needs_size\(size: int\) .*missing a required arg"):
        program.build(needs_size, {})


def build(function: Callable[..., object] = write, **options: Any) -> job.FunctionJob:
    return job.build(function, {}, (), **{"image": "trainer:1", **options})


def test_the_job_runs_the_program_in_each_replica(tmp_path: pathlib.Path) -> None:
    built = build(workers=2, parameter_servers=1, name="mine", devices=1)
    load.parse_manifest(built.document)
    spec = built.document["spec"]
    assert {role: fields.get("replicas") for role, fields in spec["tfReplicaSpecs"].items()} == {
        "Worker": 2,
        "PS": 1,
    }
    for role in spec["tfReplicaSpecs"].values():
        [container] = role["template"]["spec"]["containers"]
        assert container["command"] == ["python", program.FILE, "/results"]
        assert (container["image"], "resources" in container) == ("trainer:1", False)
    assert spec["tfReplicaSpecs"]["Worker"]["devices"] == 1
    [claim] = spec["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "results"
    built.write(tmp_path, None)
    sent = submission.build(built.document, (), tmp_path)
    assert sent.sources
    [init] = sent.job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["initContainers"]
    assert init["image"] == "trainer:1"
    volumes = yaml.safe_dump(sent.job["spec"]["tfReplicaSpecs"]["PS"])
    assert "claimName: mine-results" in volumes


def keeps_nothing() -> None: ...


def test_a_function_without_results_has_no_claim() -> None:
    built = build(keeps_nothing)
    assert built.document["metadata"]["name"] == "keeps-nothing"
    assert built.document["spec"].keys() == {"tfReplicaSpecs"}
    pod_spec = built.document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    assert [volume["name"] for volume in pod_spec["volumes"]] == ["source"]
    [container] = pod_spec["containers"]
    assert container["name"] == names.CONTAINER
    assert container["command"] == ["python", program.FILE]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": 3}, "epochs: received 3, and a function says itself how it trains. Pass the"),
        ({"checkpoint": "x"}, "checkpoint: received 'x', and a function says itself how"),
        ({"evaluator": True}, "evaluator: received True, and a function"),
        ({"name": "No: name"}, "metadata.name"),
        ({"workers": -1}, "spec.tfReplicaSpecs.Worker.replicas: received -1"),
    ],
)
def test_options_that_a_function_cannot_have(options: Any, sentence: str) -> None:
    with pytest.raises(load.SpecError) as refusal:
        build(**options)
    assert sentence in str(refusal.value)


def test_files_and_packages_go_with_the_function(tmp_path: pathlib.Path) -> None:
    folder, target = tmp_path / "mine", tmp_path / "target"
    (folder / "layers").mkdir(parents=True)
    target.mkdir()
    (folder / "layers/blocks.py").write_text("SIZE = 3\n")
    (folder / "requirements.txt").write_text("pandas")
    (folder / "notes.txt").write_text("left out")
    (folder / ".tfparallelignore").write_text("notes.txt\n")
    job.build(write, {}, ["scikit-learn>=1"], image="x").write(target, folder)
    written = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert written == {"layers/blocks.py", "requirements.txt", program.FILE}
    requirements = (target / "requirements.txt").read_text().split()
    assert requirements == ["pandas", "scikit-learn>=1"]
