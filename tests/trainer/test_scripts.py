"""Which errors are taken for those of Keras' fit under a strategy of several processes."""

from typing import Any

import keras
import numpy as np
import pytest

from tfparallel_trainer.scripts import explanation


def caught(call: Any) -> BaseException:
    with pytest.raises(Exception) as found:  # whatever Keras raises
        call()
    return found.value


def test_an_error_of_fit_on_a_model_of_its_own_process_is_not_explained() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    wrong = np.ones((3, 5), "float32")
    assert explanation.find(caught(lambda: model.fit(wrong, wrong, verbose=0))) is None
    assert explanation.find(caught(lambda: model(wrong))) is None
    assert explanation.find(caught(lambda: 1 / 0)) is None


@pytest.mark.parametrize(
    ("method", "strategy", "said"),
    [
        ("fit", "MultiWorkerMirroredStrategy", "tfparallel_trainer.fit(model, …)"),
        ("fit", "ParameterServerStrategy", "let every process call it"),
        ("predict", "ParameterServerStrategy", "predicts without the strategy"),
        ("evaluate", "MultiWorkerMirroredStrategy", "the validation_data that it is given"),
    ],
)
def test_each_call_has_its_remedy(method: str, strategy: str, said: str) -> None:
    told = explanation.explain(explanation.Call(method, strategy, "gone.py", 3))
    assert f"Keras 3 cannot {method} under {strategy}" in told
    assert "gone.py, line 3" in told
    assert said in told
