"""`tfparallel init`: what it writes trains as it is."""

import pathlib

import pytest

from testing import invocation
from tfparallel import submission
from tfparallel.cli import init


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    "source",
    [
        # tests/docs/test_get_started.py trains this one, twice.
        pytest.param(init.Way.SYNCHRONOUS, marks=pytest.mark.long),
        # It has the module of the others, which is tested with servers elsewhere.
        pytest.param(init.Way.PARAMETER_SERVERS, marks=pytest.mark.long),
        init.Way.MODEL_SPLIT,
    ],
)
def test_what_it_writes_trains_and_can_be_submitted(
    source: init.Way, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "My Model"
    done = invocation.invoke(["init", str(folder), "--way", source.value])
    assert done.exit_code == 0, done.output
    short = ("--set", "spec.trainer.epochs=null", "--set", "spec.trainer.steps=3")
    ended = invocation.run("run", "job.yaml", "--output", "out", *short, folder=folder)
    assert ended.returncode == 0, ended.stderr
    assert "Succeeded: my-model" in ended.stdout
    assert [*folder.glob("out/claims/*/my-model/model.keras")]
    assert submission.read(folder / "job.yaml").sources


@pytest.mark.usefixtures("processes")
def test_the_script_that_it_writes_trains_and_can_be_submitted(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "My Script"
    done = invocation.invoke(["init", str(folder), "--way", init.Way.SCRIPT.value])
    assert done.exit_code == 0, done.output
    assert {path.name for path in folder.iterdir()} == {"job.yaml", "train.py"}
    short = ("--set", "spec.tfReplicaSpecs.Worker.replicas=1")
    ended = invocation.run("run", "job.yaml", "--output", "out", *short, folder=folder)
    assert ended.returncode == 0, ended.stderr
    assert "Succeeded: my-script" in ended.stdout
    assert (folder / "out/claims/my-script-results/model.keras").is_file()
    assert submission.read(folder / "job.yaml").sources


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    done = invocation.invoke(["init", str(tmp_path / "file/x")])
    assert done.exit_code == 1
    assert done.stderr == (
        f"error: {tmp_path / 'file/x'}: Not a directory. Give a folder that can be written to\n"
    )


def test_it_never_overwrites(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.py").write_text("mine")
    done = invocation.invoke(["init", str(tmp_path)])
    assert done.exit_code == 1
    assert "model.py would be overwritten" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model.py"]
