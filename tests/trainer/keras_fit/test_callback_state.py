"""What callbacks remember when training resumes after a restart."""

import pathlib
import re
from typing import Any

import keras
import numpy as np
import pytest

import tfparallel_trainer
from testing import paths
from tfparallel_trainer.keras_fit import callback_state

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

X = np.random.default_rng(1).normal(size=(12, 3)).astype("float32")


def model() -> Any:
    built = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    built.compile(keras.optimizers.SGD(0.1), "mse")
    return built


class Script(keras.callbacks.Callback):
    """Gives each epoch the loss that a list has for it."""

    def __init__(self, losses: list[float]) -> None:
        super().__init__()
        self.losses = losses

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["loss"] = self.losses[epoch]


def of_page() -> Any:
    """The callback of the documentation, which counts epochs."""
    (block,) = (text for text in PAGE_BLOCKS if "get_state" in text)
    names: dict[str, Any] = {}
    exec(compile(block, "fit.md", "exec"), names)  # noqa: S102
    return names["Counter"]


PAGE_BLOCKS = re.findall(
    r"```python\n(.*?)```", (paths.ROOT / "docs/how-to/fit.md").read_text(), re.S
)
Counter = of_page()
LOSSES = [4.0, 5.0, 3.0, 6.0, 6.0, 6.0, 6.0, 6.0]


def observers() -> list[Any]:
    return [
        Script(LOSSES),
        keras.callbacks.EarlyStopping("loss", patience=3),
        keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=2),
        Counter(),
    ]


def train(folder: pathlib.Path, epochs: int) -> tuple[list[int], list[float], int]:
    """Train to an epoch; give the epochs that were trained, their rates, and what was counted."""
    callbacks = observers()
    history = tfparallel_trainer.fit(
        model, X, X[:, :1], epochs=epochs, callbacks=callbacks, verbose=0, output_dir=folder
    )
    return history.epoch, history.history.get("learning_rate", []), callbacks[-1].count


@pytest.mark.parametrize("first", [1, 3, 4, 5])
def test_a_restart_goes_on_as_one_run(
    first: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs, rates, count = train(tmp_path / "whole", 8)
    assert (epochs, count) == ([0, 1, 2, 3, 4, 5], 6), "three epochs after the best"

    class KilledError(Exception):
        """Stands for a process that is killed."""

    def interrupt(self: Any, epoch: int, logs: Any = None) -> None:
        if epoch == first:
            raise KilledError

    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(Counter, "on_epoch_begin", interrupt)
        train(tmp_path / "parts", 8)
    again = train(tmp_path / "parts", 8)
    assert again == (epochs[first:], rates[first:], count)


def test_after_an_early_stop_a_restart_trains_no_further(tmp_path: pathlib.Path) -> None:
    train(tmp_path, 8)
    epochs, _, count = train(tmp_path, 8)
    assert (epochs, count) == ([], 6)


def test_other_callbacks_start_again() -> None:
    early = keras.callbacks.EarlyStopping("loss")
    early.wait = 2
    text = callback_state.dump([early], stopped=True)
    assert not callback_state.load(text, [keras.callbacks.ReduceLROnPlateau()])
    other = keras.callbacks.EarlyStopping("loss")
    assert callback_state.load(text, [other])
    assert other.wait == 2


def test_numbers_of_any_kind_come_back() -> None:
    early = keras.callbacks.EarlyStopping("loss")
    for best in (np.float32(0.5), float("inf"), None):
        early.best = best
        other = keras.callbacks.EarlyStopping("loss")
        callback_state.load(callback_state.dump([early], stopped=False), [other])
        assert other.best == best


def test_weights_that_are_not_kept_are_said() -> None:
    early = keras.callbacks.EarlyStopping("loss", restore_best_weights=True)
    text = callback_state.dump([early], stopped=False)
    with pytest.warns(UserWarning, match="restores the best weights since this restart"):
        callback_state.load(text, [early])
