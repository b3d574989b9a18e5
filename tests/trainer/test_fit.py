"""Our fit against Keras' own: the same arguments, the same weights, the same history."""

import functools
import json
import pathlib
import warnings
from typing import Any

import numpy as np
import pytest

import tfparallel_trainer
from tests.trainer import launch
from tests.trainer.models import fitted

pytestmark = [
    pytest.mark.trainer,
    # Keras' own callbacks read variables in a way that NumPy deprecates.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

TOLERANCE = 1e-10
SCRIPT = pathlib.Path(__file__).parent / "models" / "fit_script.py"
TOGETHER = (
    "class_weight",
    "sample_weight",
    "validation_data",
    "steps_per_epoch",
    "EarlyStopping",
    "LearningRateScheduler",
    "ReduceLROnPlateau",
    "Callback",
    "two_inputs_two_outputs",
    "custom_loss",
    "gradient_accumulation",
    "averages",
)
"""The cases that several processes run."""

Result = tuple[list[Any], dict[str, Any]]


@functools.cache
def by_keras(name: str) -> Result:
    """What Keras' own fit gives in one process."""
    case = fitted.CASES[name]
    model = case.build()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of data that ends within an epoch
        history = model.fit(**case.data(), shuffle=False, verbose=0, **case.arguments())
    return model.get_weights(), told(history)


def told(history: Any) -> dict[str, Any]:
    return {"history": history.history, "epoch": history.epoch, "params": history.params}


def compare(found: Result, expected: Result) -> None:
    for one, other in zip(found[0], expected[0], strict=True):
        assert one.dtype == other.dtype
        assert float(np.abs(one - other).max()) <= TOLERANCE
    told, wanted = found[1], expected[1]
    assert told["epoch"] == wanted["epoch"]
    assert told["params"] == wanted["params"]
    assert list(told["history"]) == list(wanted["history"])
    for key, values in wanted["history"].items():
        assert told["history"][key] == pytest.approx(values, abs=TOLERANCE), key


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", fitted.CASES)
def test_alone_it_gives_what_keras_gives(name: str) -> None:
    expected = by_keras(name)
    case = fitted.CASES[name]
    model = case.build()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "steps_per_epoch is")
        history = tfparallel_trainer.fit(
            model, **case.data(), shuffle=False, verbose=0, **case.arguments()
        )
    compare((model.get_weights(), told(history)), expected)
    assert history.model is model
    assert model.history is history


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("float64")
def test_two_processes_give_what_keras_gives_in_one(tmp_path: pathlib.Path) -> None:
    environments = launch.environments(tmp_path, SCRIPT.parent, {}, processes=2)
    arguments = (str(SCRIPT), str(tmp_path), *TOGETHER)
    with launch.Group(tmp_path / "logs", environments, arguments) as group:
        expected = {name: by_keras(name) for name in TOGETHER}
        ended = group.wait(600)
    assert [one.code for one in ended] == [0, 0], ended
    for name, wanted in expected.items():
        for task in ("chief-0", "worker-0"):
            with np.load(tmp_path / f"{name}-{task}.npz") as arrays:
                weights = [arrays[key] for key in arrays.files]
            found = json.loads((tmp_path / f"{name}-{task}.json").read_text())
            compare((weights, found), wanted)
