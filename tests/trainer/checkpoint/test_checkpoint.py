"""Checkpoints on disk."""

import pathlib
from typing import Any

import keras
import numpy as np
import pytest

from testing.trainer import checkpoints
from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import files, keys, shard, store
from tfparallel_trainer.storage import folder as folders


def nested() -> keras.Model:
    """A model with a layer that is used twice, a nested model and weights of its own."""
    inner = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3), keras.layers.Dense(3)])
    shared = keras.layers.Dense(3)
    start = keras.Input((3,))
    end = keras.layers.BatchNormalization()(shared(inner(shared(start))))
    model = keras.Model(start, end)
    model.compile(keras.optimizers.Adam(), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def test_keys_do_not_depend_on_names_and_cover_everything() -> None:
    first, second = nested(), nested()  # the second one's layers are dense_3 and so on
    keys_of_first, other = (keys.for_training(model, model.optimizer) for model in (first, second))
    assert list(keys_of_first) == list(other)
    assert [v.path for v in keys_of_first.values()] != [v.path for v in other.values()]
    assert {id(v) for v in keys_of_first.values()} >= {id(v) for v in first.weights}
    assert len(keys_of_first) == len(first.weights) + len(first.optimizer.variables)


def test_a_weight_outside_the_layers_is_refused() -> None:
    class HiddenVariableModel(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, x: object) -> object:
            return self.dense(x)

    model = HiddenVariableModel()
    model(np.zeros((1, 2)))
    model.compile(keras.optimizers.SGD(), "mse")
    model.optimizer.build(model.trainable_variables)
    assert [
        key for key in keys.for_training(model, model.optimizer) if key.startswith("model/")
    ] == [
        "model/0/0",
        "model/0/1",
    ]


def test_what_is_saved_is_restored(tmp_path: pathlib.Path) -> None:
    saved = checkpoints.opened(tmp_path)
    assert saved.restore(checkpoints.state(0)) is None
    for step in (10, 25, 31):
        saved.save(checkpoints.state(step), checkpoints.at(step))
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [
        "step-0000000025",
        "step-0000000031",
    ]
    restored = checkpoints.variables(0)
    assert saved.restore(shard.undivided(restored)) == checkpoints.at(31)
    for key, expected in checkpoints.variables(31).items():
        np.testing.assert_array_equal(restored[key].value.numpy(), expected.value.numpy())


def test_a_copy_keeps_what_the_variables_were(tmp_path: pathlib.Path) -> None:
    variables = checkpoints.variables(1)
    saved = checkpoints.opened(tmp_path)
    for value in (1, 2):  # the second copy has the memory of the first one
        copy = saved.copy(shard.undivided(variables), checkpoints.at(value))
        for variable in variables.values():
            variable.value.assign_add(variable.value)  # in the same memory, as optimizers do
        copy.save()
        restored = checkpoints.variables(0)
        assert saved.restore(shard.undivided(restored)) == checkpoints.at(value)
        for key, expected in checkpoints.variables(value).items():
            np.testing.assert_array_equal(restored[key].value.numpy(), expected.value.numpy())


@pytest.mark.parametrize("name", ["part-00000.bin", "part-00000.json", "index.json"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: pathlib.Path, name: str) -> None:
    messages: list[str] = []
    saved = store.Store(folders.Folder(tmp_path), 3, "a", 1, messages.append)
    saved.save(checkpoints.state(1), checkpoints.at(1))
    saved.save(checkpoints.state(2), checkpoints.at(2))
    damaged = tmp_path / "step-0000000002" / name
    content = bytearray(damaged.read_bytes())
    content[3] ^= 0xFF
    damaged.write_bytes(bytes(content))
    assert saved.restore(checkpoints.state(0)) == checkpoints.at(1)
    assert len(messages) == 1
    assert "step-0000000002" in messages[0]
    saved.save(checkpoints.state(2), checkpoints.at(2))  # the same step again replaces it
    assert saved.restore(checkpoints.state(0)) == checkpoints.at(2)


def test_a_changed_module_is_said_at_the_resume(tmp_path: pathlib.Path) -> None:
    """Until the changed one has saved a checkpoint: a start that ends before does not count."""
    messages: list[str] = []

    def opened(number: int, module: str) -> store.Store:
        where = folders.Folder(tmp_path)
        return store.Store(
            where, 3, "a", number, messages.append, module_sum=f"{module}  model.py\n"
        )

    first = opened(1, "0")
    first.save(checkpoints.state(1), checkpoints.at(1))
    opened(2, "0").restore(checkpoints.state(0))
    assert messages == []
    note = "note: model.py has changed since the checkpoint; the changed one trains on"
    for number in (3, 4):
        changed = opened(number, "1")
        assert changed.restore(checkpoints.state(0)) == checkpoints.at(1)
        assert messages.pop() == note
    changed.save(checkpoints.state(2), checkpoints.at(2))
    opened(5, "1").restore(checkpoints.state(0))
    (tmp_path / "module.sha256").unlink()
    opened(6, "2").restore(checkpoints.state(0))
    assert messages == []


def test_an_interrupted_write_leaves_nothing_to_restore(tmp_path: pathlib.Path) -> None:
    files.write_part(folders.Folder(tmp_path / ".writing-000001-99"), 0, checkpoints.state(5))
    saved = checkpoints.opened(tmp_path)
    assert saved.restore(checkpoints.state(0)) is None
    saved.save(checkpoints.state(6), checkpoints.at(6))
    assert not list(tmp_path.glob(".writing-*"))


def test_an_older_attempt_writes_nothing_more(tmp_path: pathlib.Path) -> None:
    old = checkpoints.opened(tmp_path, 1)
    checkpoints.opened(tmp_path, 2)
    with pytest.raises(
        errors.PreemptedError, match="attempt 1 of job a, and attempt 2 of job a has"
    ):
        old.save(checkpoints.state(1), checkpoints.at(1))
    assert not list(tmp_path.glob("step-*"))
    with pytest.raises(errors.PreemptedError):
        checkpoints.opened(tmp_path, 1)
    assert checkpoints.opened(tmp_path, None).attempt == 3


def test_a_chief_that_was_replaced_within_its_attempt_writes_nothing_more(
    tmp_path: pathlib.Path,
) -> None:
    old = checkpoints.opened(tmp_path, 3)
    old.save(checkpoints.state(1), checkpoints.at(1))
    new = checkpoints.opened(tmp_path, 3)
    with pytest.raises(errors.PreemptedError, match="a newer process of the same has taken"):
        old.save(checkpoints.state(2), checkpoints.at(2))
    assert new.restore(checkpoints.state(0)) == checkpoints.at(1)
    new.save(checkpoints.state(2), checkpoints.at(2))
    assert (old.attempt, new.attempt) == (3, 3)


def test_a_recreated_job_takes_the_folder_from_its_predecessor(
    tmp_path: pathlib.Path,
) -> None:
    old = checkpoints.opened(tmp_path, 7, job="old")
    old.save(checkpoints.state(1), checkpoints.at(1))
    new = checkpoints.opened(tmp_path, 1, job="new")
    assert new.restore(checkpoints.state(0)) == checkpoints.at(1)
    with pytest.raises(errors.PreemptedError, match="attempt 1 of job new has taken"):
        old.save(checkpoints.state(2), checkpoints.at(2))
    new.save(checkpoints.state(3), checkpoints.at(3))


def test_another_model_is_refused(tmp_path: pathlib.Path) -> None:
    saved = checkpoints.opened(tmp_path)
    saved.save(checkpoints.state(1), checkpoints.at(1))
    changed = {key: keras.Variable(np.zeros((2, 4))) for key in ("model/0/0", "model/0/1")}
    with pytest.raises(errors.BadConfigurationError) as refused:
        saved.restore(shard.undivided({**checkpoints.variables(0), **changed}))
    for part in ("model/0/0 (variable", "(2, 3) there", "model/0/1 (", "(3,) there and (2, 4)"):
        assert part in str(refused.value)
    fewer = {
        key: variable for key, variable in checkpoints.variables(0).items() if key != "optimizer/0"
    }
    with pytest.raises(errors.BadConfigurationError, match="of nothing here"):
        saved.restore(shard.undivided(fewer))


def named(*names: str) -> Any:
    """A state of layers of one shape with these names."""
    keras.utils.clear_session()
    layers = [keras.layers.Dense(2, name=name or None) for name in names]
    model = keras.Sequential([keras.Input((2,)), *layers])
    return shard.undivided(keys.of_weights(model))


def test_weights_of_one_shape_that_change_places_are_refused(tmp_path: pathlib.Path) -> None:
    saved = checkpoints.opened(tmp_path)
    saved.save(named("queries", "keys", ""), checkpoints.at(1))
    with pytest.raises(errors.BadConfigurationError, match=r"keys/bias is model/1/1 .* model/0/1"):
        saved.restore(named("keys", "queries", ""))
    with pytest.raises(errors.BadConfigurationError, match=r"keys/bias is model/1/1 .* model/0/1"):
        saved.restore(named("keys", "values", "dense_5"))
    for renamed in (("queries", "values", "dense_7"), ("first", "second", "")):
        assert saved.restore(named(*renamed)) == checkpoints.at(1)


def test_names_that_keras_counts_up_are_compared_only_if_all_are_there(
    tmp_path: pathlib.Path,
) -> None:
    saved = checkpoints.opened(tmp_path)
    saved.save(named("block_1", "block_2", "block_3"), checkpoints.at(1))
    assert saved.restore(named("block_2", "block_3", "block_4")) == checkpoints.at(1)
    with pytest.raises(errors.BadConfigurationError, match="weights would change places"):
        saved.restore(named("block_2", "block_1", "block_3"))
