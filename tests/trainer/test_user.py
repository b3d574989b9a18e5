"""What a user's functions bind can be put back, so that a model can be built on the side."""

import contextlib
import pathlib
import types
from typing import Any

import keras
import pytest

from testing import disks
from tfparallel_trainer import errors, user
from tfparallel_trainer.evaluator import checkpoint_evaluator as evaluator
from tfparallel_trainer.loop import exit_report
from tfparallel_trainer.objective import checks

BOUND = 1
STATE = {"alpha": 1}
ALL = [1]
KEPT = types.SimpleNamespace(alpha=1)


def build_model() -> None:
    global BOUND
    BOUND = 2
    STATE["alpha"] = KEPT.alpha = 2
    ALL.append(2)


def test_what_a_function_binds_is_as_before() -> None:
    module = user.Module(pathlib.Path(__file__), {"build_model": build_model})
    with module.restored():
        module.build_model()
        assert (BOUND, STATE, ALL, KEPT.alpha) == (2, {"alpha": 2}, [1, 2], 2)
    assert (BOUND, STATE, ALL, KEPT.alpha) == (1, {"alpha": 1}, [1], 1)


MISNAMED = """
import keras


def build_model():
    return keras.Sequential([keras.Input([2]), keras.layers.Dense(1)], name="tiny")


def training_data():
    return make_callbacks(1)


def compile(model):
    model.compile("adam", "mse")


def validation_data():
    return 1


def make_callbacks(value):
    return value
"""


def test_a_write_into_the_folder_of_the_module_has_its_remedy(tmp_path: pathlib.Path) -> None:
    """As far as a cluster has it read-only."""
    writing = "import pathlib\n\n\ndef build_model():\n    pathlib.Path('out').mkdir()\n"
    module = _load(tmp_path, f"{writing}\n\ndef training_data(): ...\n")
    with (
        disks.mounted(tmp_path / "read-only", "ro") as folder,
        contextlib.chdir(folder),
        pytest.raises(errors.UserCodeError) as caught,
    ):
        module.build_model()
    assert str(caught.value) == (
        f"{module.path}:5: build_model raised OSError: [Errno 30] Read-only file system: 'out'. In "
        "a cluster, the folder of the module is read-only: write below context.output_dir."
    )


def _load(folder: pathlib.Path, text: str) -> user.Module:
    (folder / "model.py").write_text(text)
    return user.load(folder, "model.py")


def _hint(defined: str, meant: str) -> str:
    return (
        f"model.py defines {defined}, which the trainer does not call: if that is {meant}, rename"
        " it."
    )


def test_a_function_with_its_earlier_name_is_refused_with_the_new_name(
    tmp_path: pathlib.Path,
) -> None:
    text = "def build_model(): ...\ndef training_data(): ...\ndef layer_ways(): ...\n"
    with pytest.raises(errors.UserCodeError) as caught:
        _load(tmp_path, text)
    message = "The function layer_ways is now called layer_shardings; rename it."
    assert str(caught.value) == f"{tmp_path / 'model.py'}: {message}"
    assert _load(tmp_path, f"{text}layer_shardings = layer_ways\n").has("layer_shardings")


def test_functions_with_other_names_than_the_interface_has_are_named(
    tmp_path: pathlib.Path,
) -> None:
    """But neither one that the module uses, nor what has a name of its own."""
    module = _load(tmp_path, f"{MISNAMED}\n\ndef helper(): ...\n")
    compiling = _hint("compile", "compile_model")
    evaluating = _hint("validation_data", "evaluation_data")
    assert module.hints == {"compile_model": compiling, "evaluation_data": evaluating}
    with pytest.raises(errors.UserCodeError) as caught:
        checks.check(module.build_model())
    failure = exit_report.translate(caught.value, True, module)
    assert str(failure) == (
        f"{module.path}: The model tiny is not compiled: call model.compile(optimizer, loss) in "
        f"compile_model. {compiling}"
    )
    with pytest.raises(errors.UserCodeError) as caught:
        evaluator.check(_Evaluates(), module)  # type: ignore[arg-type]
    assert str(exit_report.translate(caught.value, True, module)).endswith(
        f"evaluator. {evaluating}"
    )


class _Evaluates:
    job = types.SimpleNamespace(evaluator=True)


@pytest.mark.parametrize(
    ("meant", "defined"),
    [
        ("training_data", "train_dataset"),
        ("training_data", "trainig_data"),
        ("build_model", "create_model"),
    ],
)
def test_a_required_function_with_another_name_is_named(
    tmp_path: pathlib.Path, meant: str, defined: str
) -> None:
    with pytest.raises(errors.UserCodeError) as caught:
        _load(tmp_path, MISNAMED.replace(f"def {meant}", f"def {defined}"))
    assert f"/model.py: {meant} is missing: define it (see " in str(caught.value)
    assert str(caught.value).endswith(f"). {_hint(defined, meant)}")


def test_a_module_of_the_name_of_a_function_is_no_function(tmp_path: pathlib.Path) -> None:
    module = _load(tmp_path, f"from keras import callbacks\n{MISNAMED}")
    assert not module.has("callbacks")


@pytest.mark.parametrize(
    "text",
    [
        MISNAMED.replace("compile(model)", "compile_model(model)").replace(
            "validation_data", "draw"
        ),
        f"{MISNAMED}\ncompile_model, evaluation_data = compile, validation_data\n",
    ],
)
def test_a_module_that_has_the_names_gets_no_hint(tmp_path: pathlib.Path, text: str) -> None:
    module = _load(tmp_path, text)
    assert module.hints == {}
    model: Any = module.build_model()
    assert isinstance(model, keras.Model)
    module.compile_model(model)
    assert model.compiled
