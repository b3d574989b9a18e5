"""The order of examples, and which rank gets which."""

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse  # type: ignore[import-untyped]
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfparallel_trainer import errors
from tfparallel_trainer.data import arrays, batch_division, nest, order, stream

counts = st.integers(1, 60)
sizes = st.integers(1, 25)
ranks = st.integers(1, 7)


@given(st.integers(0, 60), ranks)
def test_split_covers_everything_evenly(examples: int, parts: int) -> None:
    parts_of_range = order.split(examples, parts)
    assert [example for part in parts_of_range for example in part] == list(range(examples))
    lengths = [len(part) for part in parts_of_range]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


@settings(deadline=None)
@given(counts, st.integers(0, 2**31 - 1), st.integers(0, 1000))
def test_each_epoch_is_a_permutation(examples: int, seed: int, epoch: int) -> None:
    permutation = order.shuffled(range(examples), examples, seed, epoch)
    assert sorted(permutation) == list(range(examples))


def test_epochs_and_seeds_differ() -> None:
    orders = [tuple(order.shuffled(range(50), 50, *key)) for key in ((0, 0), (0, 1), (1, 0))]
    assert len(set(orders)) == 3


@pytest.mark.parametrize("size", [7, 30])
def test_an_order_is_computed_for_many_batches_at_once(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "_WINDOW", 25)
    windows: list[range] = []
    whole = order.shuffled(range(80), 80, 3, 1)

    def shuffled(positions: range, *arguments: int) -> Any:
        windows.append(positions)
        return whole[positions.start : positions.stop]

    monkeypatch.setattr(order, "shuffled", shuffled)
    in_turn = order.ShuffledOrder(80, 3, 1)
    for positions in order.batches(80, size, 5):
        halves = [positions[part.start : part.stop] for part in order.split(len(positions), 2)]
        np.testing.assert_array_equal(
            np.concatenate([in_turn[half] for half in halves]),
            whole[positions.start : positions.stop],
        )
    assert len(windows) <= 6


def division(batch: int, count: int) -> batch_division.BatchSharding:
    return batch_division.BatchSharding(
        batch_size=batch, ranks=count, local_ranks=tuple(range(count))
    )


def array_feed(x: Any, cut: batch_division.BatchSharding) -> batch_division.BatchSource:
    return arrays.ArraySource((x, x * 2, None), cut, seed=7)


def stream_feed(x: Any, cut: batch_division.BatchSharding) -> batch_division.BatchSource:
    whole = tf.data.Dataset.from_tensor_slices((x, x * 2))
    return stream.StreamSource(whole, lambda _: whole, cut, "training_data")


@pytest.mark.parametrize("make", [array_feed, stream_feed])
@settings(deadline=None, max_examples=25)
@given(counts, sizes, ranks)
def test_ranks_share_batches_that_do_not_depend_on_them(
    make: Callable[[Any, batch_division.BatchSharding], batch_division.BatchSource],
    examples: int,
    batch: int,
    count: int,
) -> None:
    x = np.arange(examples)
    alone = list(make(x, division(batch, 1)).epoch(3, 0))
    shared = list(make(x, division(batch, count)).epoch(3, 0))
    assert [batch.examples for batch in shared] == [batch.examples for batch in alone]
    for whole, cut in zip(alone, shared, strict=True):
        assert len(cut.parts) == count
        present = [part for part in cut.parts if part is not None]
        joined = np.concatenate([np.asarray(part[0]) for part in present])
        np.testing.assert_array_equal(joined, np.asarray(whole.parts[0][0]))
        np.testing.assert_array_equal(
            np.concatenate([np.asarray(part[1]) for part in present]), joined * 2
        )
    used = np.concatenate([np.asarray(batch.parts[0][0]) for batch in alone])
    assert sorted(used) == list(range(examples))


@pytest.mark.parametrize("make", [array_feed, stream_feed])
def test_an_epoch_goes_on_where_it_stopped(
    make: Callable[[Any, batch_division.BatchSharding], batch_division.BatchSource],
) -> None:
    source = make(np.arange(23), division(5, 2))
    whole = [np.asarray(nest.leaves(batch.parts)[0]) for batch in source.epoch(2, 0)]
    remaining = [np.asarray(nest.leaves(batch.parts)[0]) for batch in source.epoch(2, 10)]
    assert [list(part) for part in remaining] == [list(part) for part in whole[2:]]
    assert list(source.epoch(2, 23)) == []


def test_specs_and_samples_have_the_structure_of_parts() -> None:
    x = {"image": np.zeros((4, 2, 2), np.float32), "size": np.zeros((4,), np.int64)}
    source = arrays.ArraySource((x, np.zeros(4), None), division(2, 1), None)
    assert source.spec[0]["image"] == tf.TensorSpec((None, 2, 2), tf.float32)
    assert source.spec[2] is None
    assert source.sample()[0]["size"].shape == (1,)


@pytest.mark.parametrize(
    ("data", "pattern"),
    [
        (3, r"returns int. Return x"),
        ((np.zeros(3),) * 4, "returns tuple of 4"),
        ([np.zeros(3), np.zeros(3)], "returns list of 2"),
        ((np.zeros((3, 1)), np.zeros(2)), r"different lengths \(x has 3, y has 2 examples\)"),
        ((np.zeros((2, 1)), np.zeros(2), np.zeros(1)), "sample_weight has 1"),
        ((np.zeros((0, 1)), np.zeros(0)), r"no examples \(x has 0, y has 0\)"),
        (([1.0], [2.0]), "1.0 in x, where an array belongs"),
        ((np.array([[1], [1, 2]], object), np.zeros(2)), "rows of different lengths"),
        (
            (tf.ragged.constant([[1], [1, 2]]), np.zeros(2)),
            "gives a RaggedTensor as x, .* make it dense",
        ),
        ((tf.sparse.eye(2), np.zeros(2)), "gives a SparseTensor as x, "),
        ((scipy.sparse.eye(2, format="csr"), np.zeros(2)), "gives a csr_matrix as x, "),
    ],
)
def test_wrong_arrays_are_refused(data: Any, pattern: str) -> None:
    with pytest.raises(errors.UserCodeError, match=pattern):
        arrays.checked(data, "training_data")


@pytest.mark.parametrize(
    ("dataset", "pattern"),
    [
        (lambda: tf.data.Dataset.from_tensors((1, 2, 3, 4)), r"let each element be x, \(x, y\) or"),
        (lambda: tf.data.Dataset.from_tensor_slices(([1], [2])).take(0), "an empty data set"),
        (
            lambda: tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [1, 2]])),
            "training_data gives a RaggedTensor as x, ",
        ),
    ],
)
def test_wrong_data_sets_are_refused(dataset: Callable[[], Any], pattern: str) -> None:
    whole = dataset()
    with pytest.raises(errors.UserCodeError, match=pattern):
        stream.StreamSource(whole, lambda _: whole, division(2, 1), "training_data")


def bucketed(epoch: int) -> tf.data.Dataset:
    """Texts of like length share a batch, which is padded to its longest."""
    lengths = [1, 6, 2, 7, 2, 6, 1, 8, 2]
    texts = tf.data.Dataset.from_generator(
        lambda: ([(number + 1) * 10] * length for number, length in enumerate(lengths)),
        output_signature=tf.TensorSpec((None,), tf.int32),
    )
    return texts.map(lambda text: (text, text[0] + epoch)).bucket_by_sequence_length(
        lambda text, _: tf.size(text), [4], [3, 2]
    )


@pytest.mark.parametrize("count", [1, 2, 3])
def test_batches_of_a_data_set_stay_as_they_are(count: int) -> None:
    source = stream.StreamSource(bucketed(0), bucketed, division(99, count), "training_data")
    assert source.examples is None
    assert source.spec == (
        tf.TensorSpec((None, None), tf.int32),
        tf.TensorSpec((None,), tf.int32),
        None,
    )
    assert source.sample()[0].shape[0] == 1
    expected = [whole.numpy() for whole, _ in bucketed(2)]
    batches = list(source.epoch(2, 0))
    assert [batch.examples for batch in batches] == [len(whole) for whole in expected]
    for batch, whole in zip(batches, expected, strict=True):
        parts = [np.asarray(part[0]) for part in batch.parts if part is not None]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    used = batches[0].examples + batches[1].examples
    (remaining, *_) = source.epoch(2, used)
    np.testing.assert_array_equal(remaining.parts[0][1], batches[2].parts[0][1])


@pytest.mark.parametrize("start", [0, 4])
def test_the_sample_begins_the_first_epoch_and_leaves_no_cache_incomplete(
    capfd: pytest.CaptureFixture[str], start: int
) -> None:
    numbers = tf.data.Dataset.range(10).map(lambda number: (number, number))
    epochs: list[int] = []

    def make(epoch: int) -> tf.data.Dataset:
        epochs.append(epoch)
        return numbers.cache().shuffle(10, seed=3)

    source = stream.StreamSource(make(0), make, division(4, 1), "training_data")
    assert source.sample() is source.sample()
    (again,) = tf.data.Dataset.batch(make(0), 10)
    batches = [batch.parts[0][0].numpy() for batch in source.epoch(0, start)]
    assert np.concatenate(batches).tolist() == again[0].numpy().tolist()[start:]
    assert epochs == [0, 0, 0], "one for its structure, one for its batches, one of this test"
    assert len(list(source.epoch(0, start))) == len(batches), "another pass is a new one"
    gc.collect()
    assert "did not fully read the dataset being cached" not in capfd.readouterr().err


def test_x_alone_has_no_targets() -> None:
    x = np.arange(5)
    for data in (x, (x,), {"a": x}):
        assert arrays.checked(data, "training_data")[1:] == (None, None)
    source = stream.StreamSource(
        tf.data.Dataset.from_tensor_slices(x),
        lambda _: tf.data.Dataset.from_tensor_slices(x),
        division(4, 2),
        "training_data",
    )
    assert source.spec == (tf.TensorSpec((None,), tf.int64), None, None)
    first, second = source.epoch(0, 0)
    assert [part[0].numpy().tolist() for part in first.parts] == [[0, 1], [2, 3]]
    assert second.parts[1] is None
