"""All replicas get the first one's state, in buckets that take little memory."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing.trainer import ranks
from tfparallel_trainer import errors
from tfparallel_trainer.comms import collectives
from tfparallel_trainer.objective import replica, state

BUCKET = 1024
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64"),
)
X = np.random.default_rng(1).normal(size=(8, 37)).astype("float32")


def network() -> Any:
    return keras.Sequential(
        [
            keras.Input((37,)),
            keras.layers.Dense(29),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3, dtype="float64"),
            keras.layers.Dense(1, dtype="mixed_bfloat16"),
        ]
    )


def replicas_of(count: int) -> list[replica.Replica]:
    module = ranks.module(network, lambda model: model.compile("adam", "mse"))
    return ranks.build_apart(module, (X, X[:, :1], None), count)


def fill(member: replica.Replica) -> None:
    random = np.random.default_rng(member.data.index)
    for variable in member.state():
        variable.assign(random.integers(-9, 9, variable.shape).astype("float32"))


def values(member: replica.Replica) -> list[Any]:
    return [tf.convert_to_tensor(variable).numpy() for variable in member.state()]


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each sum over replicas takes, as they are traced on the first one."""
    monkeypatch.setattr(collectives, "GATHERED_BYTES", 0)
    sizes = []
    add_up = collectives.Communicator.sum

    def counted(communicator: collectives.Communicator, tensor: tf.Tensor) -> tf.Tensor:
        if communicator.index == 0:
            sizes.append(tensor.shape.num_elements() * tensor.dtype.size)
        return add_up(communicator, tensor)

    monkeypatch.setattr(collectives.Communicator, "sum", counted)
    return sizes


@pytest.mark.parametrize("again", [False, True])
def test_no_sum_of_a_state_is_larger_than_a_bucket(
    collected: list[int], *, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "BUCKET_BYTES", BUCKET, raising=False)
    replicas = replicas_of(3)
    for member in replicas:
        fill(member)
    expected = values(replicas[0])
    collected.clear()
    if again:
        state.sharing(replicas)()
    else:
        assert state.share(replicas, [4, 5]) == [4, 5]
    assert max(collected) <= BUCKET
    size = sum(array.nbytes for array in expected)
    assert sum(collected) == size + 8
    assert len(collected) <= 2 + 3 * -(-size // BUCKET)
    for member in replicas:
        for array, other in zip(values(member), expected, strict=True):
            assert array.dtype == other.dtype
            np.testing.assert_array_equal(array, other)


def test_a_state_that_is_the_same_already_is_not_sent(collected: list[int]) -> None:
    replicas = replicas_of(3)
    collected.clear()
    assert state.share(replicas, [4, 5]) == [4, 5]
    assert not collected
    last = replicas[2].state()[0]
    last.assign(-last)
    state.share(replicas, [4, 5])
    assert collected
    for array, other in zip(values(replicas[2]), values(replicas[0]), strict=True):
        np.testing.assert_array_equal(array, other)


class Typed(keras.layers.Layer):
    """A layer that keeps a variable of each type."""

    def build(self, _: Any) -> None:
        self.by_dtype = [
            self.add_weight(shape=shape, initializer="zeros", dtype=dtype, trainable=False)
            for dtype in DTYPES
            for shape in ((), (3, 5), (700,))
        ]

    def call(self, x: Any) -> Any:
        return x


def typed() -> Any:
    return keras.Sequential([keras.Input((37,)), Typed(), keras.layers.Dense(1)])


def test_variables_of_all_types_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "BUCKET_BYTES", BUCKET)
    module = ranks.module(typed, lambda model: model.compile("sgd", "mse"))
    replicas = ranks.build_apart(module, (X, X[:, :1], None), 2)
    for member in replicas:
        random = np.random.default_rng(member.data.index)
        for variable in member.state():
            kind = tf.as_dtype(variable.dtype).as_numpy_dtype
            limits = np.iinfo(kind) if np.issubdtype(kind, np.integer) else np.iinfo(np.int8)
            value = random.integers(limits.min, limits.max, variable.shape, limits.dtype)
            variable.assign((value % 2 if kind is np.bool_ else value).astype(kind))
    expected = values(replicas[0])
    assert any(
        not np.array_equal(array, other)
        for array, other in zip(values(replicas[1]), expected, strict=True)
    )
    state.share(replicas, [0])
    for variable, array, other in zip(
        replicas[1].state(), values(replicas[1]), expected, strict=True
    ):
        assert array.tobytes() == other.tobytes(), variable.dtype


def test_a_variable_of_texts_is_refused() -> None:
    class Named(Typed):
        def build(self, _: Any) -> None:
            self.names = keras.Variable(
                np.array(["a", "b"]), dtype="string", trainable=False, name="names"
            )

    module = ranks.module(
        lambda: keras.Sequential([keras.Input((37,)), Named(name="words"), keras.layers.Dense(1)]),
        lambda model: model.compile("sgd", "mse"),
    )
    with pytest.raises(errors.UserCodeError, match=r"The variable .*names has the dtype string"):
        ranks.build_apart(module, (X, X[:, :1], None), 1)


def test_a_bucket_waits_for_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "BUCKET_BYTES", BUCKET, raising=False)
    monkeypatch.setattr(collectives, "GATHERED_BYTES", 0)
    (member, _) = replicas_of(2)

    def run() -> None:
        member.data.begin(collectives.Program.SHARE_STATE)
        state.spread(member, member.state(), tf.zeros((1,), tf.int64))

    graph = tf.function(run, autograph=False).get_concrete_function().graph
    sums = [node for node in graph.get_operations() if node.type == "CollectiveReduceV2"]
    dtypes = {node.outputs[0].dtype for node in sums[1:]}  # a bucket has a sum of each at most
    for before, after in zip(sums, sums[len(dtypes) :], strict=False):
        assert reaches(before, after.inputs[0].op)


def reaches(source: tf.Operation, target: tf.Operation) -> bool:
    """Whether an operation runs before another one."""
    visited, pending = set(), [target]
    while pending:
        node = pending.pop()
        if node is source:
            return True
        if node.name not in visited:
            visited.add(node.name)
            pending += [*node.control_inputs, *(tensor.op for tensor in node.inputs)]
    return False
