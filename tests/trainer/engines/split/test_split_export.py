"""A divided model as one file, and a file as the start of a divided model."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing import repeats
from testing.trainer import split_models
from tfparallel_trainer import errors, user
from tfparallel_trainer.checkpoint import files, keys, shard
from tfparallel_trainer.comms import devices
from tfparallel_trainer.engines.split.state import blueprint, model_export, persistence
from tfparallel_trainer.objective import evaluate, replica
from tfparallel_trainer.storage import folder as folders

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__:DeprecationWarning",  # within Keras
    "ignore:Layer 'sequential' .* was passed an input with a mask",
)
AT = files.Position(step=4, epoch=1, example=0)


def adam() -> Any:
    return keras.optimizers.Adam(0.125, use_ema=True)


def module(
    build: Callable[[], Any], optimizer: Callable[[], Any] = adam, loss: Any = "mse"
) -> user.Module:
    functions: dict[str, Callable[..., Any]] = {
        "build_model": build,
        "compile_model": lambda model: model.compile(optimizer(), loss),
    }
    return user.Module(pathlib.Path("model.py"), functions)


def eager(user_module: user.Module, seed: int = 3) -> Any:
    """The unsplit model, with an optimizer whose state is not what it begins with."""
    replica.forget_names()
    keras.utils.set_random_seed(seed)
    model = user_module.build_model()
    user_module.compile_model(model)
    model.optimizer.build(model.trainable_variables)
    random = np.random.default_rng(seed)
    for variable in [*model.weights, *model.optimizer.variables]:
        if "float" in variable.dtype and variable.shape:
            variable.assign(random.uniform(0.1, 1.0, variable.shape))
    model.optimizer.variables[0].assign(4)
    model.optimizer.learning_rate = 0.25
    return model


def shapes(wholes: Mapping[str, shard.FullVariable]) -> dict[str, tuple[int, ...]]:
    return {key: array.shape for key, array in wholes.items()}


def equal(actual: Sequence[Any], expected: Sequence[Any]) -> None:
    for here, there in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(here.value.numpy(), there.value.numpy())


def halves(model: Any) -> list[shard.State]:
    """Two processes, each with one half of the rows of every variable that has two."""
    shares: list[dict[str, shard.VariableShard]] = [{}, {}]
    everything = keys.for_training(model, model.optimizer)
    wholes = shard.undivided(everything).wholes
    for key, source in everything.items():
        shape = tuple(source.shape)
        cut = shape[0] // 2 if shape else 0
        parts = [(slice(0, cut),), (slice(cut, None),)] if cut else [()]
        for share, part in zip(shares, parts, strict=False):
            variable = keras.Variable(
                source.value[part] if part else source.value, dtype=source.dtype
            )
            share[key] = shard.VariableShard(variable=variable, whole=wholes[key], part=part)
    return [shard.State([share], wholes) for share in shares]


def save(model: Any, folder: pathlib.Path) -> folders.Folder:
    parts, root = halves(model), folders.Folder(folder.parent)
    draft = root.draft(folder.name, "1")
    for number, state in enumerate(parts):
        files.write_part(draft, number, state)
    root.publish(draft, folder.name, files.complete(draft, 2, 1, AT, parts[0].wholes))
    return root.child(folder.name)


NOT_LOADED = ("nested", "own_layers")
"""Models that plain Keras cannot make from a file that it wrote itself."""


@pytest.mark.parametrize(
    "name", repeats.some(split_models.ALL, ("shared", "nested", "several", "masked", "own_layers"))
)
def test_plain_keras_loads_the_file_and_evaluates_to_the_same_numbers(
    tmp_path: pathlib.Path, name: str
) -> None:
    losses = {"kind": "mse", "size": "mae"} if name == "several" else "mse"
    user_module = module(split_models.ALL[name], loss=losses)
    model = eager(user_module)
    drawn = blueprint.draw(user_module, seed=3)
    everything = shard.undivided(keys.for_training(model, model.optimizer)).wholes
    assert shapes(drawn.wholes) == shapes(everything)
    model_export.check(drawn, user_module)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shard, "BLOCK_BYTES", 32)
        checkpoint = save(model, tmp_path / "checkpoint")
        model_export.save(drawn, checkpoint, tmp_path / "model.keras", user_module)
    evaluate.adopt_averages(model)
    if name in NOT_LOADED:
        loaded = eager(user_module, seed=8)
        loaded.load_weights(tmp_path / "model.keras")
    else:
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["model.keras"]
    equal(loaded.weights, model.weights)
    equal(loaded.optimizer.variables, model.optimizer.variables)
    assert float(loaded.optimizer.learning_rate) == 0.25
    x = split_models.inputs_of(model, 6)
    y = keras.tree.map_structure(np.zeros_like, model.predict(x, verbose=0))
    wanted_numbers = model.evaluate(x, y, verbose=0, return_dict=True)
    assert loaded.evaluate(x, y, verbose=0, return_dict=True) == wanted_numbers


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "Adafactor": keras.optimizers.Adafactor,
    "LossScale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(momentum=0.5)),
    "accumulating": lambda: keras.optimizers.Nadam(gradient_accumulation_steps=3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_of_any_optimizer_is_in_the_file(tmp_path: pathlib.Path, name: str) -> None:
    user_module = module(split_models.skips, OPTIMIZERS[name])
    model = eager(user_module)
    drawn = blueprint.draw(user_module, seed=3)
    checkpoint = save(model, tmp_path / "checkpoint")
    model_export.save(drawn, checkpoint, tmp_path / "model.keras", user_module)
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    equal(loaded.weights, model.weights)
    equal(loaded.optimizer.variables, model.optimizer.variables)


def test_a_damaged_checkpoint_is_not_exported(tmp_path: pathlib.Path) -> None:
    user_module = module(split_models.skips)
    checkpoint = save(eager(user_module), tmp_path / "checkpoint")
    (checkpoint.path / "part-00001.bin").write_bytes(b"")
    with pytest.raises(errors.StorageError, match=r"part-00001.bin is damaged"):
        model_export.save(
            blueprint.draw(user_module, 3), checkpoint, tmp_path / "model.keras", user_module
        )
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_a_model_for_serving_is_written_where_it_fits(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_module = module(split_models.skips)
    model = eager(user_module)
    drawn = blueprint.draw(user_module, seed=3)
    path, folder = tmp_path / "model.keras", tmp_path / "saved_model"
    model_export.save(drawn, save(model, tmp_path / "checkpoint"), path, user_module)
    evaluate.adopt_averages(model)
    assert model_export.save_for_serving(drawn, path, folder, user_module) is None
    x = split_models.inputs_of(model, 2)
    served = tf.saved_model.load(folder)
    np.testing.assert_allclose(served.serve(x), model.predict(x, verbose=0), rtol=1e-6)
    monkeypatch.setattr(devices, "free_bytes", lambda: 1e3)
    problem = model_export.save_for_serving(drawn, path, tmp_path / "other", user_module)
    assert problem is not None
    assert problem.startswith(
        "other is not written, because it needs the whole model in one process"
    )
    assert not (tmp_path / "other").exists()


def test_memory_that_a_control_group_leaves_is_what_is_free(tmp_path: pathlib.Path) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  3000 kB\n")
    assert devices.free_bytes(tmp_path) == 3_072_000
    (group / "memory.max").write_text("max\n")
    assert devices.free_bytes(tmp_path) == 3_072_000
    (group / "memory.max").write_text("1000000\n")
    (group / "memory.current").write_text("600000\n")
    (group / "memory.stat").write_text("anon 500000\ninactive_file 100000\n")
    assert devices.free_bytes(tmp_path) == 500_000


def test_a_model_whose_weights_keras_changes_as_it_writes_is_refused() -> None:
    def adapted() -> Any:
        dense = keras.layers.Dense(4)
        model = keras.Sequential([keras.Input((6,)), dense])
        dense.enable_lora(2)
        return model

    user_module = module(adapted)
    with pytest.raises(errors.UserCodeError, match="LoRA"):
        model_export.check(blueprint.draw(user_module, 3), user_module)


class Masked(keras.layers.Dense):
    """Has a weight more than Keras writes of its own layer."""

    def build(self, dims: Any) -> None:
        super().build(dims)
        self.kept = self.add_weight(shape=(dims[-1], self.units), name="kept", trainable=False)


class Written(Masked):
    """Writes it, too."""

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        store["kept"] = self.kept


def test_a_weight_that_its_layer_does_not_write_is_refused() -> None:
    def module_of(layer: Any) -> user.Module:
        return module(lambda: keras.Sequential([keras.Input((6,)), layer(4, name="pruned")]))

    pattern = "does not write sequential/pruned/kept, because .* save_own_variables and load_own"
    user_module = module_of(Masked)
    with pytest.raises(errors.UserCodeError, match=pattern):
        model_export.check(blueprint.draw(user_module, 3), user_module)
    user_module = module_of(Written)
    model_export.check(blueprint.draw(user_module, 3), user_module)


@pytest.mark.parametrize("ending", [".keras", ".weights.h5"])
@pytest.mark.parametrize(
    "name", repeats.some(split_models.ALL, ("shared", "several", "own_layers"))
)
def test_each_rank_starts_with_its_part_of_a_file(
    tmp_path: pathlib.Path, name: str, ending: str
) -> None:
    losses = {"kind": "mse", "size": "mae"} if name == "several" else "mse"
    user_module = module(split_models.ALL[name], loss=losses)
    model = eager(user_module, seed=5)
    file = tmp_path / f"first{ending}"
    (model.save if ending == ".keras" else model.save_weights)(file)
    parts = halves(eager(user_module, seed=6))
    drawn = blueprint.draw(user_module, seed=7)
    everything = keys.for_training(model, model.optimizer)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shard, "BLOCK_BYTES", 32)
        for state in parts:
            slots_before = {key: part.variable.value.numpy() for key, part in state.each()}
            persistence.load_weights(drawn, state, file.name, tmp_path)
            for key, part in state.each():
                whole = everything[key].value.numpy()[part.part]
                expected = whole if key in drawn.weights else slots_before[key]
                np.testing.assert_array_equal(part.variable.value.numpy(), expected)


def test_a_file_of_another_model_names_what_differs(tmp_path: pathlib.Path) -> None:
    other = keras.Sequential([keras.Input((6,)), keras.layers.Dense(7)])
    other.save(tmp_path / "other.keras")
    user_module = module(split_models.skips)
    (state, _) = halves(eager(user_module))
    drawn = blueprint.draw(user_module, seed=3)
    with pytest.raises(errors.BadConfigurationError, match=r"dense/vars/0 has the shape \(6, 7\)"):
        persistence.load_weights(drawn, state, "other.keras", tmp_path)
    (tmp_path / "broken.keras").write_text("nothing")
    with pytest.raises(errors.BadConfigurationError, match="which cannot be read"):
        persistence.load_weights(drawn, state, "broken.keras", tmp_path)
    with pytest.raises(errors.BadConfigurationError, match="and is there"):
        persistence.load_weights(drawn, state, "absent.keras", tmp_path)


@pytest.mark.filterwarnings("ignore:Skipping nested container")  # what else Keras says of it
def test_values_that_compile_model_assigns_are_refused(tmp_path: pathlib.Path) -> None:
    model = split_models.skips()
    model.save_weights(tmp_path / "some.weights.h5")

    def loads(built: Any) -> None:
        built.load_weights(tmp_path / "some.weights.h5")

    def assigns(built: Any) -> None:
        built.set_weights([np.zeros(array.shape) for array in built.weights])

    def nothing(built: Any) -> None:
        assert built.weights

    for function, pattern in (
        (loads, "compile_model assigns values to weights"),
        (assigns, "compile_model assigns values .* trainer.initialWeights"),
        (nothing, "the model is not compiled"),
    ):
        functions: dict[str, Callable[..., Any]] = {
            "build_model": split_models.skips,
            "compile_model": function,
        }
        with pytest.raises(errors.UserCodeError, match=pattern):
            blueprint.draw(user.Module(tmp_path / "model.py", functions), seed=1)
