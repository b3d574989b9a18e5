"""The engine on several ranks of this process: collectives, steps, evaluation, metrics.

TensorFlow remembers the devices of a group key and the shapes of an instance key for the life of a
process, so tests with the same number of ranks use models of the same shapes and types.
"""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing.trainer import ranks
from tfparallel_trainer import errors
from tfparallel_trainer.comms import collectives, shape
from tfparallel_trainer.data import arrays
from tfparallel_trainer.engines import engine
from tfparallel_trainer.engines.mesh import mesh_steps
from tfparallel_trainer.objective import checks, evaluate


def data(examples: int = 21) -> tuple[np.ndarray, np.ndarray, None]:
    random = np.random.default_rng(0)
    return (
        random.normal(size=(examples, 3)),
        random.integers(0, 2, size=(examples, 1)) * 1.0,
        None,
    )


def source(count: int, batch: int, seed: int | None = 1) -> arrays.ArraySource:
    return ranks.feed_of(data(), count, batch, seed)


def logistic() -> keras.Model:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "sigmoid")])


def with_metrics(model: keras.Model) -> None:
    model.compile(
        keras.optimizers.SGD(0.5),
        "binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(name="auc"), keras.metrics.MeanSquaredError()],
    )


def test_groups_of_a_mesh_sum_and_gather_within_themselves() -> None:
    mesh = shape.MeshShape(stage=2, tensor=2, generation=ranks.generation())
    ends = {
        (rank, axis): collectives.Communicator.for_rank(
            mesh.group(rank, axis), rank, ranks.DEVICES[rank]
        )
        for rank in range(4)
        for axis in (shape.Axis.STAGE, shape.Axis.TENSOR)
    }

    @tf.function(autograph=False)
    def run() -> Any:
        results = []
        for (rank, _), end in ends.items():
            with tf.device(ranks.DEVICES[rank]):
                end.begin(collectives.Program.TRAIN)
                number = tf.constant([float(10**rank)])
                rows = tf.fill([rank], rank)
                results.append((end.sum(number), end.gather(number), end.gather_rows([rows])[0]))
        return results

    for _ in range(2):  # the same keys serve every step
        for (rank, axis), (total, stack, rows) in zip(ends, run(), strict=True):
            members = mesh.group(rank, axis).ranks
            assert total.numpy().tolist() == [sum(10.0**member for member in members)]
            assert stack.numpy().tolist() == [[10.0**member] for member in members]
            assert rows.numpy().tolist() == [member for member in members for _ in range(member)]


@pytest.mark.usefixtures("float64")
def test_metrics_and_evaluation_are_those_of_one_rank() -> None:
    module = ranks.module(logistic, with_metrics)
    results = []
    for count in (1, 4):
        replicas = ranks.build(module, data(), count)
        step = mesh_steps.MeshTrainStep(module, replicas, source(count, 5).spec, 5)
        losses = [
            step(number, batch, frozenset()).loss
            for number, batch in enumerate(source(count, 5).epoch(0, 0))
        ]
        report, _ = evaluate.MetricReduction(replicas)(np.zeros((2, len(replicas[0].terms))))
        again, _ = evaluate.MetricReduction(replicas)(np.zeros((2, len(replicas[0].terms))))
        assert report == again  # reporting changes nothing
        evaluation = mesh_steps.MeshEvaluator(module, replicas, source(count, 4).spec)
        evaluated = evaluation.run(source(count, 4, None).epoch(0, 0))
        results.append((losses, report, evaluated, replicas[0].model.get_weights()))
    assert set(results[0][1]) == {"accuracy", "auc", "mean_squared_error"}
    for result, other in zip(*results, strict=True):
        flat = keras.tree.flatten(result), keras.tree.flatten(other)
        for a, b in zip(*flat, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10)


def test_evaluation_is_that_of_keras() -> None:
    module = ranks.module(logistic, with_metrics)
    replicas = ranks.build(module, data(), 3)
    results = mesh_steps.MeshEvaluator(module, replicas, source(3, 4).spec).run(
        source(3, 4, None).epoch(0, 0)
    )
    expected = replicas[0].model.evaluate(*data()[:2], verbose=0, return_dict=True)
    assert results == pytest.approx(expected, rel=1e-5)


def test_an_evaluation_without_examples_is_refused() -> None:
    module = ranks.module(logistic, with_metrics)
    evaluation = mesh_steps.MeshEvaluator(module, ranks.build(module, data(), 3), source(3, 4).spec)
    with pytest.raises(errors.UserCodeError, match="The data to evaluate on have no examples"):
        evaluation.run([])


def test_flags_of_any_rank_reach_all() -> None:
    module = ranks.module(logistic, with_metrics)
    replicas = ranks.build(module, data(), 2)
    step = mesh_steps.MeshTrainStep(module, replicas, source(2, 5).spec, 5)
    batch = next(source(2, 5).epoch(0, 0))
    assert step(0, batch, frozenset()).requests == frozenset()
    assert step(1, batch, frozenset({engine.StepRequest.STOP})).requests == {
        engine.StepRequest.STOP
    }


def test_replicas_stay_equal_and_draw_different_masks() -> None:
    drawn: list[Any] = []

    def build() -> keras.Model:
        inputs = keras.Input((3,))
        dropped = keras.layers.Dropout(0.5)(inputs)
        return keras.Model(inputs, keras.layers.Dense(1)(dropped))

    def compile_model(model: keras.Model) -> None:
        model.compile(keras.optimizers.SGD(0.1), "mse")
        drawn.append(model.layers[1].seed_generator.state)

    module = ranks.module(build, compile_model)
    for _ in range(2):
        drawn.clear()
        replicas = ranks.build(module, data(), 2)
        step = mesh_steps.MeshTrainStep(module, replicas, source(2, 6).spec, 6)
        for number, batch in enumerate(source(2, 6).epoch(0, 0)):
            step(number, batch, frozenset())
        seeds = [variable.value.numpy().tolist() for variable in drawn]
        assert seeds[0] != seeds[1]
        array_of_first, other = (replica.model.get_weights() for replica in replicas)
        for a, b in zip(array_of_first, other, strict=True):
            np.testing.assert_array_equal(a, b)


class OwnStep(keras.Model):
    def train_step(self, data: Any) -> Any:
        return data


def refused(build: Any, compile_model: Any) -> str:
    with pytest.raises(errors.UserCodeError) as caught:
        module = ranks.module(build, compile_model)
        replicas = ranks.build_apart(module, data(), 2)
        mesh_steps.MeshTrainStep(module, replicas, source(2, 6).spec, 6)(
            0, next(source(2, 6).epoch(0, 0)), frozenset()
        )
    return str(caught.value)


def layered(*layers: keras.layers.Layer) -> keras.Model:
    return keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])


@pytest.mark.parametrize(
    ("build", "compile_model", "message"),
    [
        (lambda: None, with_metrics, "build_model returns NoneType"),
        (logistic, lambda model: None, "is not compiled: call model.compile"),
        (
            lambda: OwnStep(*(lambda m: (m.inputs, m.outputs))(logistic())),
            with_metrics,
            "overrides train_step, which cannot be divided",
        ),
        (
            lambda: layered(keras.layers.Reshape((7,))),
            with_metrics,
            "build_model raised ValueError",
        ),
        (lambda: layered(keras.layers.Dense(2)), lambda model: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_models_that_cannot_be_trained_are_refused(
    build: Any, compile_model: Any, message: str
) -> None:
    assert message in refused(build, compile_model)


def test_a_distribution_of_keras_which_tensorflow_ignores_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keras.distribution, "distribution", lambda: object())
    assert "choose spec.strategy and spec.mesh" in refused(logistic, with_metrics)


def test_plain_batch_normalization_is_warned_of_once() -> None:
    module = ranks.module(lambda: layered(keras.layers.BatchNormalization()), with_metrics)
    (built,) = ranks.build_apart(module, data(), 1)
    [sentence] = checks.advice(built.model, 2)
    assert "BatchNormalization" in sentence
    assert checks.advice(built.model, 1) == []


def test_the_saved_statistics_are_what_is_evaluated() -> None:
    module = ranks.module(lambda: layered(keras.layers.BatchNormalization()), with_metrics)
    first, second = replicas = ranks.build_apart(module, data(), 2)
    first.model.layers[0].moving_mean.assign([1.0, 2.0, 3.0])
    second.model.set_weights([2 * weight + 1 for weight in first.model.get_weights()])
    for weight, other in zip(
        first.model.trainable_weights, second.model.trainable_weights, strict=True
    ):
        other.assign(weight)
    results = mesh_steps.MeshEvaluator(module, replicas, source(2, 4).spec).run(
        source(2, 4, None).epoch(0, 0)
    )
    expected = first.model.evaluate(*data()[:2], verbose=0, return_dict=True)
    assert results == pytest.approx(expected, 1e-5)


def test_later_replicas_keep_the_dtype_policy() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    results = ranks.build_apart(ranks.module(logistic, with_metrics), data(), 2)
    assert [replica.model.layers[-1].compute_dtype for replica in results] == ["bfloat16"] * 2
    assert results[0].model.layers[-1].name == results[1].model.layers[-1].name
