"""The model of a script gets what was trained."""

import keras
import numpy as np
import pytest

from tfparallel_trainer.keras_fit import models


def waiting() -> keras.Model:
    """Return a model that has no variables before its first input."""
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("adam", "mse")
    return model


@pytest.mark.parametrize("source", [waiting, waiting()], ids=["function", "model"])
def test_a_model_that_waits_for_its_input_gets_what_servers_held(source: object) -> None:
    holder = models.Models(source, remote=True)
    trained = holder.build()
    trained.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)
    handed_back = holder.hand_back()
    assert handed_back is not trained
    for model in (trained, handed_back):
        assert len(model.get_weights()) == 2
    pairs = zip(
        [*trained.get_weights(), *trained.optimizer.variables],
        [*handed_back.get_weights(), *handed_back.optimizer.variables],
        strict=True,
    )
    for expected, value in pairs:
        np.testing.assert_array_equal(np.asarray(value), np.asarray(expected))
