"""How a script ends that calls fit, when something comes between."""

import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.trainer import launch
from tests.trainer.test_fit import by_keras
from tfparallel_trainer.contract import exits

pytestmark = pytest.mark.trainer

SCRIPT = pathlib.Path(__file__).parent / "models" / "fit_long.py"
EPOCHS = 12


def arguments(folder: pathlib.Path, *more: str) -> tuple[str, ...]:
    return str(SCRIPT), str(folder / "output"), str(EPOCHS), *more


@pytest.mark.usefixtures("float64")
def test_a_script_that_is_asked_to_end_goes_on_where_it_was(tmp_path: pathlib.Path) -> None:
    for attempt in ("first", "second"):
        environments = launch.environments(tmp_path / attempt, SCRIPT.parent, {}, processes=2)
        with launch.Group(tmp_path / "logs", environments, arguments(tmp_path)) as group:
            if attempt == "first":
                group.wait_for_output(0, "Epoch 4/")
                group.processes[1].send_signal(signal.SIGTERM)
            ended = group.wait()
        code = exits.Exit.PREEMPTED if attempt == "first" else exits.Exit.DONE
        assert [one.code for one in ended] == [code, code], ended
    assert "resuming after step" in ended[0].output
    weights, _ = by_keras("epochs")
    with np.load(tmp_path / "output" / "weights.npz") as arrays:
        for key, wanted in zip(arrays.files, weights, strict=True):
            assert float(np.abs(arrays[key] - wanted).max()) <= 1e-10


@pytest.mark.parametrize(
    ("wrong", "processes", "code", "said"),
    [
        ("nan", 2, exits.Exit.NON_FINITE, "the loss is nan"),
        ("early", 2, exits.Exit.USER_ERROR, "tfparallel_trainer.start() the first line"),
    ],
)
def test_what_goes_wrong_is_said_in_a_sentence_and_an_exit_code(
    wrong: str, processes: int, code: exits.Exit, said: str, tmp_path: pathlib.Path
) -> None:
    environments = launch.environments(tmp_path, SCRIPT.parent, {}, processes=processes)
    with launch.Group(tmp_path / "logs", environments, arguments(tmp_path, wrong)) as group:
        ended = group.wait()
    assert {one.code for one in ended} <= {code, exits.Exit.PEER_LOST}, ended
    assert ended[0].code == code
    assert said in ended[0].errors


def test_the_operator_imports_no_tensorflow_with_the_package() -> None:
    program = "import sys, tfparallel_trainer; print('tensorflow' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout == "False\n"
