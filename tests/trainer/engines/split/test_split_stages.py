"""Stages that exchange tensors and gradients compute what the whole model does."""

import itertools
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing import repeats
from testing.trainer import split_models
from tfparallel_trainer.engines.split.model import graph, interpreter, recording
from tfparallel_trainer.engines.split.pipeline import cutting

pytestmark = split_models.MARKS


def loss_of(outputs: Iterable[Any]) -> Any:
    """The sum of squares."""
    squares = (tf.cast(tf.reduce_sum(output**2), "float64") for output in outputs)
    return tf.add_n([tf.zeros((), "float64"), *squares])


def whole(model: graph.Graph, inputs: Any, weights: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Outputs and gradients of their sum of squares."""
    with tf.GradientTape() as tape:
        tape.watch(weights)
        outputs = split_models.run(model, inputs, weights, training=True).outputs
        loss = loss_of(keras.tree.flatten(outputs))
    return outputs, tape.gradient(loss, weights)


def in_stages(
    model: graph.Graph,
    model_stages: tuple[cutting.ModelStage, ...],
    inputs: Any,
    weights: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same, one stage after the other, each with its own tape and replicas of variables."""
    inputs_by_number = interpreter.by_number(model, inputs)
    mail: dict[cutting.Transfer, Any] = {}
    runs = []
    outputs: dict[str, Any] = {}
    for stage in model_stages:
        received = {transfer.tensor: mail[transfer] for transfer in stage.received}
        stage_weights = {
            key: tf.identity(weights[key]) for key in (*stage.owned, *dict(stage.borrowed))
        }
        with tf.GradientTape() as tape:
            tape.watch((received, stage_weights))
            tensors_before = {
                **received,
                **{tensor: inputs_by_number[tensor] for tensor in stage.inputs},
            }
            tensors = interpreter.run_nodes(
                model, stage.nodes, tensors_before, stage_weights, training=True
            ).tensors
            mine = {output.name: tensors[output.tensor] for output in stage.outputs}
            loss = loss_of(mine.values())
        outputs |= mine
        mail |= {transfer: tf.identity(tensors[transfer.tensor]) for transfer in stage.sent}
        runs.append((stage, tape, received, stage_weights, loss, tensors))
    back: dict[cutting.Transfer, Any] = {}
    gradients: dict[str, Any] = {}
    for stage, tape, received, stage_weights, loss, tensors in reversed(runs):
        sent = [transfer for transfer in stage.sent if back[transfer] is not None]
        of_tensors, of_own = tape.gradient(
            [loss, *(tensors[transfer.tensor] for transfer in sent)],
            (received, stage_weights),
            output_gradients=[tf.ones((), "float64"), *(back[transfer] for transfer in sent)],
        )
        back |= {transfer: of_tensors[transfer.tensor] for transfer in stage.received}
        for key, gradient in of_own.items():
            if gradient is not None:
                gradients[key] = (
                    gradients[key] + gradient
                    if key in gradients
                    else tf.convert_to_tensor(gradient)
                )
    return outputs, gradients


@pytest.mark.parametrize(
    "name",
    repeats.some(
        split_models.ALL, ("skips", "shared", "nested", "several", "masked", "own_layers")
    ),
)
def test_stages_compute_outputs_and_gradients_of_the_whole(name: str) -> None:
    build = split_models.ALL[name]
    model = recording.record(split_models.bare(build))
    inputs = split_models.inputs_of(split_models.eager(build), 3)
    values = split_models.values(split_models.eager(build))
    weights = {key: tf.constant(value) for key, value in values.items()}
    outputs, gradients = whole(model, inputs, weights)
    expected = dict(
        zip((output.name for output in model.outputs), keras.tree.flatten(outputs), strict=True)
    )
    places = range(1, len(model.nodes))
    pairs = itertools.islice(itertools.combinations(places[::3], 2), 4)
    everywhere = [*([stage] for stage in places), *map(list, pairs), list(places)]
    for ends in everywhere:
        actual, actual_gradients = in_stages(model, cutting.cut(model, ends), inputs, weights)
        for key, gradient in expected.items():
            np.testing.assert_allclose(actual[key], gradient, rtol=0, atol=1e-12)
        for key, gradient in gradients.items():
            assert (gradient is None) == (key not in actual_gradients), key
            if gradient is not None:
                np.testing.assert_allclose(
                    actual_gradients[key], tf.convert_to_tensor(gradient), rtol=0, atol=1e-12
                )
