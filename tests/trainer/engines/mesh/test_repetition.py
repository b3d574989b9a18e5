"""Several steps in one call give what single steps give, bit by bit."""

import collections
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing.trainer import ranks
from tfparallel_trainer import errors
from tfparallel_trainer.contract import job_file
from tfparallel_trainer.data import batch_division
from tfparallel_trainer.engines import engine
from tfparallel_trainer.engines.mesh import mesh_steps, repetition

EXAMPLES = 45
BATCH = 4
STOP = frozenset({engine.StepRequest.STOP})

Results = list[engine.StepResult]


def data(broken: int | None = None, count: int = EXAMPLES) -> tuple[np.ndarray, np.ndarray, None]:
    """Examples, of which one may not be finite."""
    random = np.random.default_rng(3)
    x = random.normal(size=(EXAMPLES, 8, 8, 1)).astype(np.float32)
    if broken is not None:
        x[broken] = np.nan
    return x[:count], random.integers(0, 3, size=EXAMPLES)[:count], None


def convolutional() -> keras.Model:
    """A model that draws, and that keeps statistics."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(6, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Flatten(),
            keras.layers.Dense(16, activation="gelu"),
            keras.layers.Dense(3),
        ]
    )


def residual() -> keras.Model:
    """A model that TensorFlow optimizes otherwise if it does not know the shapes of weights."""
    layers, inputs = keras.layers, keras.Input((8, 8, 1))
    x = layers.BatchNormalization()(layers.Conv2D(6, 3, padding="same")(inputs))
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(layers.Add()([x, inputs])))
    return keras.Model(inputs, layers.Dense(3)(x))


def dense() -> keras.Model:
    return keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(3)])


def with_adam(model: keras.Model) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.Adam(0.01, clipnorm=1.0, use_ema=True), loss, metrics=["accuracy"]
    )


class TrainedSteps:
    """Steps on all batches, in executions of some lengths at most."""

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        count: int = 2,
        build: Callable[[], keras.Model] = dense,
        examples: Any = None,
        **options: Any,
    ) -> None:
        examples = data() if examples is None else examples
        module = ranks.module(build, with_adam)
        self.replicas = ranks.build(module, examples, count)
        source = ranks.feed_of(examples, count, BATCH)
        self.step = mesh_steps.MeshTrainStep(module, self.replicas, source.spec, BATCH, **options)
        batches, self.results = source.epoch(0, 0), Results()
        for length in itertools.cycle(lengths):
            execution = list(itertools.islice(batches, length))
            if not execution:
                break
            self.results += self.step.run_steps(len(self.results), execution, frozenset())
            if check := self.results[-1].check:
                check()

    def state(self) -> list[np.ndarray]:
        """All variables of the first replica."""
        return [np.asarray(variable) for variable in self.replicas[0].state()]


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> collections.Counter[int]:
    """How many executions had so many steps, of those with several."""
    lengths: collections.Counter[int] = collections.Counter()
    compute = mesh_steps.MeshTrainStep.compute_together

    def counted(
        self: Any, step: int, batches: Sequence[batch_division.Batch], requests: Any
    ) -> Any:
        lengths[len(batches)] += 1
        return compute(self, step, batches, requests)

    monkeypatch.setattr(mesh_steps.MeshTrainStep, "compute_together", counted)
    return lengths


@pytest.mark.parametrize(
    ("build", "count"), [(convolutional, 1), (convolutional, 2), (residual, 1)]
)
def test_steps_are_those_of_single_calls(
    build: Callable[[], keras.Model], count: int, executed: collections.Counter[int]
) -> None:
    """12 batches, the last one of one example."""
    single = TrainedSteps([1], count=count, build=build)
    assert not executed
    for lengths, expected in (([5], {5: 2}), ([2, 3], {2: 2, 3: 2})):
        several = TrainedSteps(lengths, count=count, build=build)
        assert executed == expected
        executed.clear()
        assert [result.losses for result in several.results] == [
            result.losses for result in single.results
        ]
        for array, other in zip(several.state(), single.state(), strict=True):
            np.testing.assert_array_equal(array, other)


def test_requests_go_with_the_first_step_and_reach_all() -> None:
    trained = TrainedSteps([1])
    batches = list(itertools.islice(ranks.feed_of(data(), 2, BATCH).epoch(0, 0), 3))
    results = trained.step.run_steps(12, batches, STOP)
    assert [result.requests for result in results] == [STOP, frozenset(), frozenset()]


def test_a_step_that_is_not_finite_is_named_and_left_out(
    executed: collections.Counter[int],
) -> None:
    """Example 18 is in the fifth batch."""
    single = TrainedSteps([1], examples=data(18), leaves_out=True)
    several = TrainedSteps([11], examples=data(18), leaves_out=True)
    assert executed == {11: 1}
    for trained in (single, several):
        assert [result.finite for result in trained.results] == [n != 4 for n in range(12)]
    for array, other in zip(several.state(), single.state(), strict=True):
        np.testing.assert_array_equal(array, other)


def test_no_execution_follows_one_that_is_not_finite(executed: collections.Counter[int]) -> None:
    trained = TrainedSteps([1])
    batches = list(ranks.feed_of(data(18), 2, BATCH).epoch(0, 0))
    results = trained.step.run_steps(12, batches, frozenset())
    assert executed == {11: 1}  # the last batch, of another shape, waits in vain
    assert len(results) == 11
    assert [result.finite for result in results[:5]] == [True] * 4 + [False]


def test_a_check_sees_the_state_after_its_step(executed: collections.Counter[int]) -> None:
    """Steps 1, 2, 4 and 8 are compared."""
    trained = TrainedSteps([11], examples=data(count=44), verify=job_file.Verify.AUTO)
    assert executed == {2: 1, 4: 1, 3: 1}
    checked = [number for number, result in enumerate(trained.results, 1) if result.check]
    assert checked == [1, 2, 4, 8]


def test_with_every_step_checked_each_is_a_call(executed: collections.Counter[int]) -> None:
    trained = TrainedSteps([4], examples=data(count=16), verify=job_file.Verify.ALWAYS)
    assert not executed
    assert all(result.check for result in trained.results)


@keras.saving.register_keras_serializable()
class DrawnNoise(keras.layers.Layer):
    """Adds what an operation of TensorFlow draws, whose state is its own."""

    def call(self, inputs: Any) -> Any:
        return inputs + tf.random.normal(tf.shape(inputs), stddev=0.1)


def noisy() -> keras.Model:
    return keras.Sequential(
        [keras.Input((8, 8, 1)), DrawnNoise(), keras.layers.Flatten(), keras.layers.Dense(3)]
    )


def test_operations_that_keep_their_own_state_run_in_single_calls(
    executed: collections.Counter[int],
) -> None:
    single, several = (TrainedSteps(lengths, count=1, build=noisy) for lengths in ([1], [4]))
    assert not executed
    assert [result.loss for result in several.results] == [result.loss for result in single.results]


def test_metrics_of_each_step_are_asked_for_one_by_one(executed: collections.Counter[int]) -> None:
    trained = TrainedSteps([])
    batches = list(itertools.islice(ranks.feed_of(data(), 2, BATCH).epoch(0, 0), 3))
    results = trained.step.run_steps(0, batches, frozenset({engine.StepRequest.METRICS}))
    assert not executed
    assert all(result.metrics for result in results)


def test_examples_that_differ_are_found_in_any_step_of_an_execution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained = TrainedSteps([1])
    batches = list(itertools.islice(ranks.feed_of(data(), 2, BATCH).epoch(0, 0), 3))
    compute = trained.step.compute_together

    def with_another_process(*arguments: Any) -> Any:
        outputs = list(compute(*arguments))
        other = outputs[1].requests.copy()
        other[len(engine.StepRequest)] += 1  # another process, with another fingerprint
        other[-1] += 1
        outputs[1] = outputs[1]._replace(requests=other)
        return outputs

    monkeypatch.setattr(trained.step, "compute_together", with_another_process)
    with pytest.raises(errors.UserCodeError, match="first seen in step 14"):
        trained.step.run_steps(12, batches, frozenset())


def test_batches_of_other_sizes_are_not_alike_even_if_a_part_is() -> None:
    """Nine and eight examples over two processes: the second one has four of both."""
    batches = [
        batch_division.Batch(examples, [(np.zeros((4, 3)), None, None)]) for examples in (9, 8)
    ]
    assert repetition.count_alike(batches) == 1


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [([[2, 2], [2, 2], [2, 1]], 2), ([[1, None], [1, None]], 1), ([[3]], 1)],
)
def test_batches_of_one_shape_are_counted(lengths: Any, expected: int) -> None:
    batches = [
        batch_division.Batch(
            sum(length or 0 for length in sizes),
            [None if length is None else (np.zeros((length, 3)), None, None) for length in sizes],
        )
        for sizes in lengths
    ]
    assert repetition.count_alike(batches) == expected
