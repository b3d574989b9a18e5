"""What data functions may return: mapped arrays, TFRecord files, generators."""

import gzip
import itertools
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from testing import buckets
from testing.trainer import launch, reference, requests, weights
from testing.trainer import runs as trainings
from tfparallel_trainer import errors, inputs, user
from tfparallel_trainer.contract import exits
from tfparallel_trainer.data import batch_division, data_functions, fingerprints, nest, order

Make = Callable[[int, pathlib.Path], Callable[..., Any]]
ZEROS = inputs.Arrays(np.zeros(1), np.zeros(1))
NAMES = ("mapped", "records", "generated")


def opened(
    function: Callable[..., Any],
    division: batch_division.BatchSharding,
    seed: int = 7,
    *,
    evaluation: bool = False,
) -> batch_division.BatchSource:
    user_module = user.Module(
        pathlib.Path(__file__), {"training_data": function, "evaluation_data": function}
    )
    request = requests.build_request(division, seed, endless_allowed=False)
    return (
        data_functions.evaluation(user_module, request)
        if evaluation
        else data_functions.training(user_module, request)
    )


def noisy(x: Any, y: Any, seed: Any) -> Any:
    return (x, tf.random.stateless_uniform((), seed)), y * 2


def mapped(examples: int, _: pathlib.Path) -> Callable[[], Any]:
    x = np.arange(examples)
    return lambda: inputs.Arrays(x, x).map(noisy)


def recorded(examples: int, folder: pathlib.Path) -> Callable[[], Any]:
    paths = [folder / f"{number}.tfrecord" for number in range(2)]
    rows = list(range(examples))
    write(paths[0], rows[: examples // 3])
    write(paths[1], rows[examples // 3 :])

    def parse(record: Any, seed: Any) -> Any:
        x = tf.strings.to_number(record, tf.int64)
        return noisy(x, x, seed)

    return lambda: inputs.Records(paths, parse)


def generated(examples: int, _: pathlib.Path) -> Callable[..., Any]:
    def generate(context: user.Context) -> Iterator[Any]:
        random = np.random.default_rng([context.seed, context.epoch])
        for x in random.permutation(examples):
            yield (x, random.uniform()), x * 2

    return generate


MAKERS: dict[str, Make] = {"mapped": mapped, "records": recorded, "generated": generated}


def write(path: pathlib.Path, rows: list[int]) -> None:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in rows:
            writer.write(str(row))


def division(
    batch: int, count: int, places: tuple[int, ...] | None = None
) -> batch_division.BatchSharding:
    return batch_division.BatchSharding(
        batch_size=batch, ranks=count, local_ranks=places or tuple(range(count))
    )


def rows_of(parts: list[Any]) -> list[tuple[float, ...]]:
    """The examples of parts as rows."""
    present = [nest.leaves(part) for part in parts if part is not None]
    return [tuple(map(float, row)) for leaves in present for row in zip(*leaves, strict=True)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("records")


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=6)
@given(
    examples=st.integers(1, 40), batch=st.integers(4, 17), count=st.integers(1, 4), data=st.data()
)
def test_each_example_once_whatever_the_ranks(
    name: str, examples: int, batch: int, count: int, data: st.DataObject, folder: pathlib.Path
) -> None:
    function = MAKERS[name](examples, folder)
    alone = [rows_of(batch.parts) for batch in opened(function, division(batch, 1)).epoch(3, 0)]
    parts = [opened(function, division(batch, count, (rank,))) for rank in range(count)]
    shared = [list(batch.epoch(3, 0)) for batch in parts]
    assert [
        [row for step in steps for row in rows_of(step.parts)]
        for steps in zip(*shared, strict=True)
    ] == alone
    rows = [row for step in alone for row in step]
    assert sorted(row[0] for row in rows) == list(range(examples))
    assert all(row[2] == 2 * row[0] for row in rows)
    done = data.draw(st.integers(0, len(alone)))
    position = min(examples, done * batch)
    remaining = opened(function, division(batch, count)).epoch(3, position)
    assert [rows_of(batch.parts) for batch in remaining] == alone[done:]


@pytest.mark.parametrize("name", ["mapped", "records"])
def test_the_order_is_that_of_arrays(name: str, folder: pathlib.Path) -> None:
    stream = opened(MAKERS[name](29, folder), division(8, 2), seed=5)
    rows = [row for batch in stream.epoch(2, 0) for row in rows_of(batch.parts)]
    assert [row[0] for row in rows] == list(order.shuffled(range(29), 29, 5, 2))
    assert stream.examples == 29


def test_what_is_random_follows_from_seed_epoch_and_example(folder: pathlib.Path) -> None:
    def drawn(seed: int, epoch: int) -> dict[float, float]:
        stream = opened(mapped(20, folder), division(7, 2), seed)
        return {row[0]: row[1] for batch in stream.epoch(epoch, 0) for row in rows_of(batch.parts)}

    first = drawn(1, 0)
    assert len(set(first.values())) == 20
    for other in (drawn(1, 1), drawn(2, 0)):
        assert not set(other.values()) & set(first.values())
    at = seed_of(1, 0, position=0, number=13)
    assert first[13.0] == float(tf.random.stateless_uniform((), at))


def seed_of(seed: int, epoch: int, *, position: int, number: int) -> Any:
    drawn = tf.random.stateless_uniform(
        (position + 1,), tf.constant([seed, epoch], tf.int64), None, None, tf.int64
    )
    return tf.stack([drawn[position], tf.constant(number, tf.int64)])


def test_functions_follow_each_other_and_may_give_weights() -> None:
    x = np.arange(4.0)

    def weighed(x: Any, y: Any, weight: Any) -> Any:
        return x, y, weight + 1

    def heavier(x: Any, y: Any, weight: Any) -> Any:
        return {"a": x}, y, weight * 10

    stream = opened(lambda: inputs.Arrays(x, x, x).map(weighed).map(heavier), division(4, 1))
    (step,) = stream.epoch(0, 0)
    x, _, weight = step.parts[0]
    np.testing.assert_array_equal(weight, 10 * (np.asarray(x["a"]) + 1))
    assert stream.spec[0]["a"] == tf.TensorSpec((None,), tf.float64)
    assert stream.sample()[2].shape == (1,)


def test_the_examples_to_evaluate_on_keep_their_order() -> None:
    x = np.arange(9)
    plain = inputs.Arrays(x, x)
    for function in (lambda: plain, lambda: plain.map(lambda x, y: (x, y))):
        stream = opened(function, division(4, 1), evaluation=True)
        rows = [row[0] for batch in stream.epoch(0, 0) for row in rows_of(batch.parts)]
        assert rows == list(range(9))


def a_list(x: Any, y: Any) -> Any:
    return [x, y]


def broken(x: Any, y: Any) -> Any:
    raise ValueError("no such picture")


def uneven() -> Iterator[Any]:
    yield np.zeros(2), 0
    yield np.zeros(3), 0


def no_tuple() -> Iterator[Any]:
    yield 1


def nothing() -> Iterator[Any]:
    yield from ()


def failing() -> Iterator[Any]:
    raise KeyError("column")
    yield 1, 1


@pytest.mark.parametrize(
    ("function", "pattern"),
    [
        (
            lambda: inputs.Arrays(np.zeros(1), np.zeros(1)).map(a_list),
            "go through returns list of 2",
        ),
        (
            lambda: inputs.Arrays(np.zeros(1), np.zeros(1)).map(broken),
            "go through raised ValueError: ",
        ),
        (lambda: inputs.Arrays(np.zeros(2), np.zeros(3)), "arrays of different lengths"),
        (uneven, "examples of different shapes or structures"),
        (no_tuple, r"yields int: yield x, \(x, y\)"),
        (nothing, "yields no examples"),
        (failing, "training_data raised KeyError: 'column'"),
    ],
)
def test_wrong_sources_are_refused(function: Callable[..., Any], pattern: str) -> None:
    with pytest.raises(errors.UserCodeError, match=pattern):
        list(opened(function, division(2, 1)).epoch(0, 0))


def test_an_error_in_the_middle_of_an_epoch_shows_the_users_line() -> None:
    def generate() -> Iterator[Any]:
        yield np.zeros(1), 0
        yield np.zeros(1), 1 // int(np.zeros(1)[0] > 1)

    steps = opened(generate, division(1, 1)).epoch(0, 0)
    next(steps)
    with pytest.raises(errors.UserCodeError, match="raised ZeroDivisionError") as caught:
        next(steps)
    assert "1 // int(" in caught.value.trace


def cut(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def compress(path: pathlib.Path) -> None:
    path.write_bytes(gzip.compress(path.read_bytes()))


@pytest.mark.parametrize(
    ("damage", "pattern"),
    [
        (cut, r"is cut short \(at byte 17 of 31\)\."),
        (compress, "It is compressed: unpack it"),
        (lambda path: path.write_bytes(b""), "1 files without a record"),
    ],
)
def test_wrong_record_files_are_refused(
    damage: Callable[[pathlib.Path], object], pattern: str, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "a.tfrecord"
    write(path, [1, 2])
    damage(path)
    with pytest.raises(errors.UserCodeError, match=pattern):
        opened(lambda: inputs.Records([path], lambda record: (record, record)), division(1, 1))


def test_records_at_an_address_are_refused() -> None:
    address = "http://bucket/a.tfrecord"
    with pytest.raises(errors.BadConfigurationError, match=r"'http://bucket/a.tfrecord' is not an"):
        opened(lambda: inputs.Records([address], lambda record: (record, record)), division(1, 1))


class Sequence(keras.utils.PyDataset):
    """Batches of two, the last one of one; longer texts in later batches."""

    epochs = 0

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        count = 1 if index == 2 else 2
        return np.full((count, 2 + index), index), np.full((count,), self.epochs)

    def on_epoch_end(self) -> None:
        self.epochs += 1


def test_a_py_dataset_gives_its_batches_in_an_order_of_the_seed() -> None:
    orders = []
    training = opened(lambda: Sequence(), division(4, 2))
    for epoch in range(6):
        batches = list(training.epoch(epoch, 0))
        assert sorted(batch.examples for batch in batches) == [1, 2, 2]
        orders.append([int(np.asarray(batch.parts[0][0]).flat[0]) for batch in batches])
        assert {int(np.asarray(batch.parts[0][1])[0]) for batch in batches} == {epoch}
    assert len({tuple(batch) for batch in orders}) > 1
    evaluation = opened(lambda: Sequence(), division(4, 1), evaluation=True)
    for _ in range(2):
        places = [int(np.asarray(batch.parts[0][0]).flat[0]) for batch in evaluation.epoch(0, 0)]
        assert places == [0, 1, 2]


PAGES = [
    (launch.REPOSITORY / "docs" / page).read_text()
    for page in ("how-to/data.md", "how-to/sources.md")
]
BLOCKS = [block for page in PAGES for block in re.findall(r"```python\n(.*?)```", page, re.S)]
OF_BUCKETS = [block for block in BLOCKS if "my-bucket" in block]
OF_FILES = [block for block in BLOCKS if block not in OF_BUCKETS]


@pytest.mark.parametrize("block", OF_FILES, ids=lambda block: str(BLOCKS.index(block)))
def test_the_examples_of_the_page_give_examples(block: str, tmp_path: pathlib.Path) -> None:
    write_files(tmp_path)
    assert examples_of(block, tmp_path) in (2, 6, 100)


@pytest.mark.parametrize("block", OF_BUCKETS, ids=lambda block: str(BLOCKS.index(block)))
def test_the_examples_of_the_page_read_from_a_bucket(
    block: str, tmp_path: pathlib.Path, s3: buckets.Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    write_files(tmp_path / "files")
    for path in (tmp_path / "files").rglob("*.*"):
        s3.put(path.relative_to(tmp_path / "files").as_posix(), path.read_bytes())
    assert examples_of(block.replace("my-bucket", s3.name), tmp_path) == 2


def write_files(folder: pathlib.Path) -> None:
    """Write the files that the examples of the page read."""
    (folder / "images").mkdir(parents=True)
    for name in ("cat", "dog"):
        picture = tf.io.encode_png(tf.zeros((8, 8, 1), tf.uint8)).numpy()
        (folder / "images" / f"{name}.png").write_bytes(picture)
    write_features(folder / "a.tfrecord", {"x": [[1.0] * 3] * 2, "y": [[3.0]] * 2})
    np.savez(folder / "digits.npz", x=np.ones((2, 3)), y=np.ones((2, 1)))


def examples_of(block: str, tmp_path: pathlib.Path) -> int:
    """Count the examples that the data function of an example gives."""
    block = block.replace('"/images', f'"{tmp_path}/images')
    (tmp_path / "model.py").write_text(f"{block}\n\ndef build_model():\n    pass\n")
    user_module = user.load(tmp_path, "model.py")
    request = requests.build_request(division(2, 2), 1, tmp_path, endless_allowed=False)
    (first, *others) = data_functions.training(user_module, request).epoch(0, 0)
    assert all(part is not None for part in first.parts)
    return sum(batch.examples for batch in (first, *others))


STEPS, FIRST_STEPS, BATCH, SEED = 17, 7, 8, 5


def test_records_on_two_and_then_three_processes_equal_one(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    """29 records in batches of 8: the last one has 5; the first run ends within epoch 1."""
    folder = tmp_path / "source"
    folder.mkdir()
    shutil.copy(reference.MODELS / "noisy_records.py", folder)
    values = np.random.default_rng(3).normal(size=(29, 3)).astype(np.float32)
    write_features(folder / "a.tfrecord", {"x": values[:4]})
    write_features(folder / "b.tfrecord", {"x": values[4:]})
    for steps, processes in ((FIRST_STEPS, 2), (STEPS, 3)):
        trainer = {
            "module": "noisy_records.py",
            "steps": steps,
            "globalBatchSize": BATCH,
            "seed": SEED,
            "checkpoint": {"claim": "c"},
        }
        environments = launch.environments(tmp_path, folder, trainer, processes=processes)
        with runs.group(environments) as group:
            ended = group.wait()
        assert [process.code for process in ended] == [exits.Exit.DONE.value] * processes, ended
    with reference.floatx():
        expected, _ = reference.train(
            reference.load("noisy_records"),
            STEPS,
            BATCH,
            SEED,
            lambda epoch: noisy_rows(values, epoch),
        )
    assert weights.run_difference(tmp_path, expected) <= weights.TOLERANCE


def write_features(path: pathlib.Path, columns: dict[str, Any]) -> None:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in zip(*columns.values(), strict=True):
            feature = {
                name: tf.train.Feature(float_list=tf.train.FloatList(value=value))
                for name, value in zip(columns, row, strict=True)
            }
            features = tf.train.Features(feature=feature)
            writer.write(tf.train.Example(features=features).SerializeToString())


def noisy_rows(values: Any, epoch: int) -> tuple[Any, Any]:
    """The examples of an epoch as docs/how-to/data.md says that they come."""
    rows, targets = [], []
    for number in order.shuffled(range(len(values)), len(values), SEED, epoch):
        row = values[number].astype(np.float64)
        targets.append(row.sum(keepdims=True))
        if row[0] > 0:
            seed = seed_of(SEED, epoch, position=1, number=number)
            row = row + tf.random.stateless_normal((3,), seed, dtype=tf.float64).numpy()
        rows.append(row)
    return np.stack(rows), np.stack(targets)


def together(*examples: Any) -> bool:
    """Whether processes that were given these examples take them for the same."""
    return fingerprints.alike(
        np.sum(
            [fingerprints.summands(fingerprints.compute(example)) for example in examples], axis=0
        )
    )


@given(st.integers(1, 9), st.integers(0, 2**62), st.floats(1e-100, 1e100))
def test_marks_differ_when_one_process_differs(count: int, number: int, value: float) -> None:
    for same, other in ((np.int64(number), np.int64(number + 1)), (value, value * 1.001)):
        assert together(*[same] * count)
        assert not together(*[same] * count, other)


def test_other_data_is_never_taken_for_the_same() -> None:
    kinds: list[Callable[[np.random.Generator], Any]] = [
        lambda random: np.eye(10)[random.integers(0, 10, size=64)],
        lambda random: np.eye(10, dtype=np.float32)[random.integers(0, 10, size=8)],
        lambda random: random.integers(0, 2, size=64),
        lambda random: random.normal(size=(64, 5)).astype(np.float32),
        lambda random: random.permutation(np.arange(64.0)),
    ]
    for kind in kinds:
        sets = [kind(np.random.default_rng(seed)) for seed in range(24)]
        assert not any(together(*pair) for pair in itertools.combinations(sets, 2))


def test_floats_that_processors_round_differently_are_the_same() -> None:
    values = np.random.default_rng(0).normal(size=(64, 500)).astype(np.float32)
    assert together(values, np.nextafter(values, np.float32(9)))


def test_marks_tell_values_places_and_strings_apart() -> None:
    different = (
        (np.arange(5), None),
        (np.arange(6), None),
        np.array([1, 0, 2, 3, 4]),
        np.array(["a", "b"]),
        np.array(["b", "a"]),
        {"a": np.float32(2.5)},
        np.arange(5000.0),
        np.roll(np.arange(5000.0), 4093),
    )
    assert not any(together(*pair) for pair in itertools.combinations(different, 2))
    assert together(np.full(3, np.nan), np.full(3, np.nan))


STRATEGY = """
def build_strategy():
    import tensorflow
    return tensorflow.distribute.MultiWorkerMirroredStrategy()
"""


@pytest.mark.parametrize("strategy", ["MultiWorkerMirrored", "Custom"])
def test_processes_that_read_other_examples_are_reported(
    strategy: str, tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    text = (reference.MODELS / "own_order.py").read_text()
    (tmp_path / "own_order.py").write_text(text + STRATEGY)
    trainer = {"module": "own_order.py", "epochs": 1, "globalBatchSize": 8}
    environments = launch.environments(tmp_path, tmp_path, trainer, processes=2, strategy=strategy)
    with runs.group(environments, logs=".") as group:
        ended = group.wait()
    for process in ended:
        assert process.code == exits.Exit.USER_ERROR.value, process
        assert "Replicas received different examples" in process.errors
        assert "in step 1" in process.errors
