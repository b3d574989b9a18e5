"""Look-ups whose rows do not follow from the batch, in stages and microbatches."""

import functools
import types
from collections.abc import Callable
from typing import Any

import keras
import pytest

from testing.trainer import (
    cases,
    cases_split,
    lookup_models,
    reference,
    split_models,
    weights,
)
from tfparallel_trainer.comms import shape

pytestmark = split_models.MARKS

BATCH, STEPS = 6, 4
MESHES = {
    "microbatches": (shape.MeshShape(), 3),
    "stages": (shape.MeshShape(stage=2), 3),
    "data": (shape.MeshShape(data=2, stage=2), 2),
    "tensor": (shape.MeshShape(tensor=2), 2),
}


def functions(build: Callable[[], keras.Model], **clips: float) -> dict[str, Any]:
    return {
        "build_model": build,
        "compile_model": lambda model: model.compile(keras.optimizers.Adam(0.05, **clips), "mse"),
        "training_data": lambda: lookup_models.examples()[:2],
    }


@functools.cache
def expected(name: str, **clips: float) -> tuple[list[Any], list[float]]:
    module = types.SimpleNamespace(**functions(lookup_models.ALL[name], **clips))
    return reference.train(module, STEPS, BATCH, cases.SEED)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", ["static", "repeated", "broadcast", "tied"])
def test_rows_that_the_batch_does_not_name_count_once(name: str, mesh: str) -> None:
    degrees, microbatches = MESHES[mesh]
    weights_of_one, losses_of_one = expected(name)
    losses, difference = cases_split.train_on_mesh(
        functions(lookup_models.ALL[name]), degrees, microbatches, BATCH, weights_of_one, STEPS
    )
    assert losses == pytest.approx(losses_of_one, rel=1e-10)
    assert difference <= weights.TOLERANCE


@pytest.mark.parametrize("mesh", ["stages", "tensor"])
@pytest.mark.parametrize("clip", ["global_clipnorm", "clipnorm", "clipvalue"])
def test_clipped_mentions_count_as_in_keras(clip: str, mesh: str) -> None:
    """The norm of all gradients makes Keras add the mentions of a row up, the others do not."""
    degrees, microbatches = MESHES[mesh]
    clips = {clip: 0.01}
    model = functions(lookup_models.ALL["repeated"], **clips)
    weights_of_one, losses_of_one = expected("repeated", **clips)
    losses, difference = cases_split.train_on_mesh(
        model, degrees, microbatches, BATCH, weights_of_one, STEPS
    )
    assert losses == pytest.approx(losses_of_one, rel=1e-10)
    assert difference <= weights.TOLERANCE
