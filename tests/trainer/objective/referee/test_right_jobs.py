"""What trains rightly passes all checks, and what cannot be compared is said."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing.trainer import ranks
from tests.trainer.objective.referee import test_faults as faults
from tfparallel_trainer import errors
from tfparallel_trainer.comms import devices
from tfparallel_trainer.contract import job_file, verification
from tfparallel_trainer.objective import replica
from tfparallel_trainer.objective.referee import replica_referee, sampling, sides

LAYERS = keras.layers
QUANTITIES = verification.Quantity


def adam(model: Any) -> None:
    model.compile(
        keras.optimizers.Adam(0.1, use_ema=True, global_clipnorm=0.5),
        "mse",
        metrics=["mae", keras.metrics.MeanSquaredError()],
    )


def momentum(model: Any) -> None:
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])


def sentences(length: int | None = None) -> Any:
    first = keras.Input((length,), dtype="int32")
    x = LAYERS.Embedding(9, 4, mask_zero=True)(first)
    return keras.Model(first, LAYERS.Dense(2)(LAYERS.GlobalAveragePooling1D()(x)))


def tokens() -> tuple[Any, Any, Any]:
    random = np.random.default_rng(0)
    return random.integers(0, 9, (9, 5)), random.normal(size=(9, 2)), random.uniform(size=9)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("build", "examples"),
    [
        (lambda: faults.dense(LAYERS.Dropout(0.5), LAYERS.GaussianNoise(0.3)), None),
        pytest.param(
            lambda: faults.dense(LAYERS.BatchNormalization(synchronized=True)),
            faults.data(9),
            marks=pytest.mark.long,
        ),
        pytest.param(sentences, tokens(), marks=pytest.mark.long),
    ],
    ids=["random", "normalised", "sparse and masked"],
)
def test_a_right_job_passes_all_checks(build: Any, examples: Any) -> None:
    checks = list(faults.checks_of(build, adam, examples))
    assert [check.step for check in checks][:2] == [1, 2]
    for check in checks:
        assert not check.omitted
        assert set(check.differences) >= set(QUANTITIES) - {QUANTITIES.NON_TRAINABLE_STATE}
        assert all(quantity.value < 1e-12 for quantity in check.differences.values())


@pytest.mark.usefixtures("float64")
def test_a_table_that_ranks_add_up_as_a_whole_is_compared_with_the_rows_of_one_process() -> None:
    checks = list(faults.checks_of(lambda: sentences(5), momentum, tokens()))
    assert checks
    for check in checks:
        assert not check.omitted
        assert all(quantity.value < 1e-12 for quantity in check.differences.values())


@pytest.mark.long
def test_rounding_of_float32_is_no_fault() -> None:
    checks = list(faults.checks_of(faults.dense, adam, count=3, batch=7))
    assert len(checks) == 4
    limits = {quantity.limit for check in checks for quantity in check.differences.values()}
    assert limits == {2e-4}


@pytest.mark.long
@pytest.mark.usefixtures("float64")
def test_plain_batch_normalization_is_compared_as_if_it_were_synchronized() -> None:
    checks = list(faults.checks_of(lambda: faults.dense(LAYERS.BatchNormalization()), adam))
    assert len(checks) == 4
    assert list(checks[-1].omitted) == ["BatchNormalization of each replica's own examples"]
    assert checks[-1].differences[QUANTITIES.GRADIENTS].value < 1e-12


class Noise(keras.layers.Layer):
    def call(self, x: Any, training: bool = False) -> Any:
        return x + tf.random.normal(tf.shape(x), dtype=x.dtype) if training else x


@pytest.mark.usefixtures("float64")
def test_what_cannot_be_repeated_is_not_compared_and_says_so() -> None:
    checks = list(faults.checks_of(lambda: faults.dense(Noise())))
    assert [check.differences for check in checks] == [{}] * 4
    assert "gives different numbers each time" in checks[0].sentence


@pytest.mark.usefixtures("float64")
def test_a_check_changes_nothing() -> None:
    """All state is as if no step had been checked."""
    module = ranks.module(lambda: faults.dense(LAYERS.Dropout(0.5), faults.CallCounter()), adam)
    weights = []
    for verify in (job_file.Verify.OFF, job_file.Verify.ALWAYS):
        replicas, _ = ranks.run(module, faults.data(), 2, 4, verify=verify)
        member = replicas[1]
        state = [
            *member.state(),
            *member.model.metrics_variables,
            *(seed for seed, _ in member.seeds),
        ]
        weights.append([variable.numpy() for variable in state])
    for without, checked in zip(*weights, strict=True):
        np.testing.assert_array_equal(without, checked)


def test_checks_are_made_after_each_doubling_new_division_and_change() -> None:
    schedule = replica_referee.CheckSchedule(2, always=False)
    sizes = [4, 4, 3, 4, 1, 4, 4, 4, 3, 1]
    due = [number for number, size in enumerate(sizes, 1) if schedule.is_due(size)]
    assert due == [1, 2, 3, 4, 5, 8]
    changed = [False, False, True, False, True, True, True, True]
    schedule = replica_referee.CheckSchedule(2, always=False)
    due = [
        number
        for number, is_changed in enumerate(changed, 1)
        if schedule.is_due(4, changed=is_changed)
    ]
    assert due == [1, 2, 3, 4, 5, 7, 8]  # the third change is not
    always = replica_referee.CheckSchedule(2, always=True)
    assert all(always.is_due(size) for size in sizes)


@pytest.mark.parametrize(
    ("examples", "count", "expected"),
    [
        (8, 2, [2, 2]),
        (9, 2, [3, 2]),
        (1, 2, [1, 0]),
        (4, 2, [1, 1]),
        (3, 2, [2, 1]),
        (1024, 4, [16, 16, 16, 16]),
        (1025, 4, [16, 16, 16, 15]),
        (8, 8, [1, 1, 0, 0, 0, 0, 0, 0]),
        (1, 1, [1]),
        (200, 1, [64]),
    ],
)
def test_a_check_has_no_more_examples_than_a_rank_and_is_divided_as_the_batch_is(
    examples: int, count: int, expected: list[int]
) -> None:
    assert sampling.counts(examples, count) == expected


def test_examples_of_a_check_have_the_smallest_and_the_largest_targets() -> None:
    y = np.array([[1.0], [0.0], [5.0], [2.0], [3.0]])
    _, chosen, weights = sampling.choose((np.zeros((5, 2)), y, np.arange(5.0)), 3)
    np.testing.assert_array_equal(chosen, [[0.0], [5.0], [3.0]])
    np.testing.assert_array_equal(weights, [1.0, 2.0, 4.0])


@pytest.mark.parametrize("writes", [False, True], ids=["alike", "changed"])
def test_without_memory_for_a_check_the_variables_of_ranks_are_compared(
    monkeypatch: pytest.MonkeyPatch, writes: bool
) -> None:
    def before(number: int, replicas: list[replica.Replica]) -> None:
        if writes and number == 1:
            kernel = replicas[1].model.trainable_variables[0]
            kernel.assign(kernel + 0.01)

    monkeypatch.setattr(devices, "free_bytes", lambda: 100.0)
    checks = faults.checks_of(faults.dense, before=before)
    first = next(checks)
    assert first.differences == {}
    reason, copies = first.omitted
    assert "of memory are available" in reason
    assert copies == "all but the copies of each variable, which are alike"
    if writes:
        sentence = r"Step 2 .* in weights \(.*/kernel\): its value differs between replicas"
        with pytest.raises(errors.VerificationError, match=sentence):
            next(checks)
    else:
        assert [check.differences for check in checks] == [{}] * 3


def test_a_device_without_memory_for_one_process_is_given_fewer_examples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original, most, tried = sides.Sides.run_alone, 8, []

    def run_alone(member: sides.Sides, sample: sides.Sample, gradients: Any) -> Any:
        tried.append(list(sample.counts))
        if sum(sample.counts) > most:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        return original(member, sample, gradients)

    monkeypatch.setattr(sides.Sides, "run_alone", run_alone)
    checks = faults.checks_of(faults.dense, examples=faults.data(32), batch=32)
    assert QUANTITIES.GRADIENTS in next(checks).differences
    assert tried == [[8, 8], [4, 4]]
    most = 0
    last = next(checks)
    assert tried[2:] == [[4, 4], [2, 2]]
    assert last.differences == {}
    assert last.omitted[0] == "a device has no memory left for the examples of all ranks"
    assert next(checks).omitted == last.omitted
    assert len(tried) == 4
