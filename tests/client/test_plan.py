"""`tfparallel plan`, with the trainer as a process of its own."""

import pathlib
import subprocess

import pytest

from benchmarks.pages import plans
from testing import invocation, pages, pictures
from tfparallel.planning import option_values, plan_picture
from tfparallel_operator.api import load
from tfparallel_trainer.contract import plan

MODEL = plans.JOB.parent / "model.py"

pytestmark = pytest.mark.usefixtures("processes")


_MODULE = """
import keras
def training_data(context): raise AssertionError("a plan needs no data")
def build_model():
    print("a model is built")
    open("units.txt").close()  # next to the module, where `tfparallel run` finds it
    return keras.Sequential([keras.Input([8]), keras.layers.Dense(8), keras.layers.Dense(1)])
def compile_model(model): model.compile("adam", "mse")
"""


def run(
    *options: str, model: pathlib.Path = MODEL, folder: pathlib.Path | None = None
) -> invocation.Ended:
    return invocation.run("plan", model, *options, folder=folder, timeout=300)


def test_the_example_shows_what_the_page_says(tmp_path: pathlib.Path) -> None:
    page = plans.PAGE.read_text(encoding="utf-8")
    assert pages.section(page, plans.EXAMPLE) == plans.example(tmp_path)
    assert f"$ tfparallel plan {plans.COMMAND}\n" in page
    answer = plan.Plan.model_validate_json((tmp_path / "plan.json").read_bytes())
    assert [rank.stage for rank in answer.ranks] == [0, 1, 2, 3]
    shown = plans.image("split-deep-cnn").read_text(encoding="utf-8")
    assert not pictures.differs((tmp_path / "plan.svg").read_text(encoding="utf-8"), shown)


def test_a_plan_as_data_is_all_that_is_printed(tmp_path: pathlib.Path) -> None:
    module = tmp_path / "model.py"
    module.write_text(_MODULE)
    (tmp_path / "units.txt").touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = run("--devices", "2", "--batch", "8", "-o", "json", model=module, folder=elsewhere)
    assert done.returncode == 0, done.stderr
    answer = plan.Plan.model_validate_json(done.stdout)
    assert (answer.batch, len(answer.ranks)) == (8, 2)
    assert answer.bubble == plan.bubble(answer.spans, len(answer.stages))
    assert "a model is built" in done.stderr
    assert not [*elsewhere.iterdir()]


@pytest.mark.parametrize("folder", [name for name in plans.DRAWN if name != "split-deep-cnn"])
def test_the_picture_of_an_example_is_that_of_its_plan(folder: str) -> None:
    """If it is not, `python -m benchmarks.pages.plans` redraws it."""
    picture = plan_picture.picture(plans.planned(plans.DRAWN[folder]))
    shown = plans.image(folder).read_text(encoding="utf-8")
    assert not pictures.differs(picture.document, shown)


def test_the_page_says_what_the_embedding_lacks_on_one_device() -> None:
    page = plans.SPLIT_PAGE.read_text(encoding="utf-8")
    assert pages.section(page, plans.LACKS) == plans.lacks()


def test_what_does_not_fit_ends_with_a_sentence(tmp_path: pathlib.Path) -> None:
    options = ("--memory", "100kB", "--output", str(tmp_path / "out"))
    done = run("--devices", "4", "--mesh", "stage=4", *options)
    assert done.returncode == 2
    assert "error: The model does not fit 4 devices of 97.7 KiB" in done.stderr
    assert "a device of stage" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_module_that_raises_shows_the_users_lines(tmp_path: pathlib.Path) -> None:
    module = tmp_path / "broken.py"
    module.write_text(
        "print('hello')\ndef training_data(): pass\ndef build_model():\n    return undefined\n"
    )
    done = run("--devices", "2", model=module)
    assert done.returncode == 2
    assert "hello" in done.stderr
    assert "return undefined" in done.stderr
    assert "build_model raised NameError" in done.stderr
    assert "tfparallel_trainer" not in done.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--devices", "6", "--pods", "4"), "--pods 4: 6 devices cannot be divided evenly"),
        (("--devices", "2", "--memory", "much"), "--memory much: write bytes, such as 8GiB"),
        (("--devices", "2", "--mesh", "model=2"), "--mesh model=2: 'model'; give each of data"),
        (("--devices", "2", "--output", "json"), "--output json names a folder: for the form"),
        (("--devices", "2", "--mesh", "data=two"), "--mesh data=two: write axes with numbers"),
    ],
)
def test_bad_options_are_refused_before_the_trainer_starts(
    options: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    result = invocation.invoke(["plan", str(MODEL), *options])
    assert result.exit_code == 2
    assert f"error: {sentence}" in result.stderr


def test_bytes_as_people_write_them() -> None:
    assert option_values.size("8GiB") == option_values.size("8Gi") == 8 * 2**30
    assert option_values.size("1.5 MB") == option_values.size("1500kB") == 1_500_000
    assert option_values.size("100") == 100
    with pytest.raises(load.SpecError, match="--memory 0"):
        option_values.size("0")


def test_devices_are_divided_among_pods() -> None:
    assert option_values.pods(6, None) == (6, 1)
    assert option_values.pods(6, 2) == (2, 3)
    assert option_values.mesh("data=2, stage=-1") == {"data": 2, "stage": -1}
