"""What a run starts from and leaves: initial weights, model.keras, SavedModel."""

import pathlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing.trainer import launch
from testing.trainer import runs as trainings
from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import export, initial_weights
from tfparallel_trainer.contract import exits, outputs

pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # within Keras


def network(units: int = 4, layers: int = 2) -> keras.Model:
    keras.utils.clear_session()
    dense = [keras.layers.Dense(units) for _ in range(layers)]
    model = keras.Sequential([keras.Input((3,)), *dense, keras.layers.Dropout(0.5)])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.mark.parametrize("name", ["trained.keras", "trained.weights.h5"])
def test_weights_are_read_and_the_optimizer_starts_afresh(
    tmp_path: pathlib.Path, name: str
) -> None:
    trained = network()
    trained.train_on_batch(np.ones((4, 3)), np.ones((4, 4)))
    (trained.save if name.endswith(".keras") else trained.save_weights)(tmp_path / name)
    model = network()
    initial_weights.load(model, name, tmp_path)
    for actual, expected in zip(model.get_weights(), trained.get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert int(model.optimizer.iterations) == 0
    for slot in model.optimizer.variables[2:]:
        assert not np.any(slot.value.numpy())


@pytest.mark.parametrize(
    ("units", "layers", "message"),
    [
        (5, 2, r"dense/vars/0 has the shape \(3, 4\) there and \(3, 5\) here.*; and 1 more"),
        (4, 1, r"dense_1/vars/0 has the shape \(4, 4\) there and of nothing here"),
        (4, 3, r"dense_2/vars/1 has the shape of nothing there and \(4,\) here"),
    ],
)
def test_weights_of_another_model_are_refused_by_name(
    tmp_path: pathlib.Path, units: int, layers: int, message: str
) -> None:
    network().save(tmp_path / "other.keras")
    with pytest.raises(errors.BadConfigurationError, match=message):
        initial_weights.load(network(units, layers), "other.keras", tmp_path)


def test_files_that_are_none_are_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "broken.keras").write_text("nothing")
    (tmp_path / "broken.weights.h5").write_text("nothing")
    for name in ("broken.keras", "broken.weights.h5"):
        with pytest.raises(errors.BadConfigurationError, match="which cannot be read"):
            initial_weights.load(network(), name, tmp_path)
    for name in ("absent.keras", "broken.txt"):
        with pytest.raises(errors.BadConfigurationError, match=r"ends in \.keras or \.weights\.h5"):
            initial_weights.load(network(), name, tmp_path)


def test_a_model_that_cannot_be_exported_is_the_users(tmp_path: pathlib.Path) -> None:
    class UnknownModel(keras.Model):
        pass

    model = UnknownModel()
    with pytest.raises(errors.UserCodeError, match="saving the model as saved_model raised"):
        export.save_for_serving(model, tmp_path / "saved_model", tmp_path / "model.py")
    assert not list(tmp_path.iterdir())


class Wrapped(keras.Model):
    """A subclass without get_config whose arguments Keras cannot write down."""

    def __init__(self, layers: Sequence[Any]) -> None:
        super().__init__()
        self.parts = list(layers)

    def call(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return x


class Scaled(keras.layers.Layer):
    def __init__(self, factor: Any) -> None:
        super().__init__()
        self.factor = factor

    def call(self, x: Any) -> Any:
        return x


class Described(Scaled):
    def get_config(self) -> dict[str, Any]:
        return {"factor": self.factor}


class Broken(Scaled):
    def get_config(self) -> dict[str, Any]:
        return {"factor": self.unknown}


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step: Any) -> Any:
        return 0.1


def compiled(*layers: Any, **how: Any) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    model.compile(**{"optimizer": "sgd", "loss": "mse", **how})
    return model


def wrapped() -> keras.Model:
    model = Wrapped([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model(np.ones((1, 3)))
    return model


@pytest.mark.parametrize(
    ("build", "part", "reason"),
    [
        (wrapped, "Wrapped", "non-serializable argument values"),
        (lambda: compiled(Scaled(object())), "Scaled", "non-serializable argument values"),
        (lambda: compiled(Described(object())), "Described", "Cannot serialize object"),
        (lambda: compiled(Broken(1)), "Broken", "has no attribute 'unknown'"),
        (
            lambda: compiled(optimizer=keras.optimizers.SGD(Schedule())),
            "Schedule",
            "must override `get_config",
        ),
    ],
)
def test_a_model_that_cannot_be_saved_is_named_before_training(
    tmp_path: pathlib.Path, build: Callable[[], keras.Model], part: str, reason: str
) -> None:
    model = build()
    with pytest.raises((NotImplementedError, TypeError, AttributeError)):
        model.save(tmp_path / "model.keras")
    pattern = rf"could not be saved .*cannot write down {part} \(.*{reason}.*Let {part}\.get_config"
    with pytest.raises(errors.UserCodeError, match=pattern):
        export.check(model, tmp_path / "model.py")


def test_models_that_can_be_saved_are_not_refused(tmp_path: pathlib.Path) -> None:
    def distance(y: Any, y_pred: Any) -> Any:
        return keras.ops.abs(y - y_pred)

    rate = keras.optimizers.schedules.CosineDecay(0.1, 10)
    models = [
        network(),
        compiled(Scaled(2.0), Described(0.5)),
        compiled(keras.layers.Lambda(lambda x: 2 * x)),
        compiled(optimizer=keras.optimizers.Adam(rate), loss=distance, metrics=[distance, "mae"]),
    ]
    for model in models:
        export.check(model, tmp_path / "model.py")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*includes a `lambda`")
            model.save(tmp_path / "model.keras")


MODEL = """
import keras, numpy
def build_model():
    dense = [keras.layers.Dense(4) for _ in range(2)]
    return keras.Sequential([keras.Input((3,)), *dense, keras.layers.Dropout(0.5)])
def compile_model(model):
    model.compile(keras.optimizers.SGD(1e-30), "mse")
def training_data():
    return numpy.ones((8, 3), "float32"), numpy.ones((8, 4), "float32")
"""


def test_a_run_of_two_starts_from_a_file_and_leaves_both_models(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    first = network()
    first.save(tmp_path / "first.keras")
    trainer: dict[str, object] = {
        "epochs": 1,
        "globalBatchSize": 4,
        "initialWeights": "first.keras",
        "savedModel": True,
    }
    environments = launch.environments(tmp_path, tmp_path, trainer, processes=2)
    with runs.group(environments) as group:
        ended = group.wait(90)
    assert [process.code for process in ended] == [0, 0], ended
    assert "starting with the weights of first.keras" in ended[0].output
    expected = first.predict(np.ones((2, 3)), verbose=0)
    output = tmp_path / "output"
    for name in (outputs.MODEL, "first.keras"):
        folder = output if name == outputs.MODEL else tmp_path
        loaded = keras.models.load_model(folder / name)
        np.testing.assert_allclose(loaded.predict(np.ones((2, 3)), verbose=0), expected, rtol=1e-6)
    served = tf.saved_model.load(output / outputs.SAVED_MODEL)
    np.testing.assert_allclose(served.serve(tf.ones((2, 3))), expected, rtol=1e-6)


STRATEGY = """
def build_strategy():
    import tensorflow
    return tensorflow.distribute.OneDeviceStrategy("/cpu:0")
"""
SUBCLASS = """
class Wrapped(keras.Model):
    def __init__(self, parts):
        super().__init__()
        self.parts = parts
    def call(self, x):
        return self.parts[0](x)
def build_model():
    return Wrapped([keras.layers.Dense(4)])
"""


def test_runs_that_save_their_model_end_before_the_first_step(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    begin, end = MODEL.index("def build_model"), MODEL.index("def compile_model")
    text = MODEL[:begin] + SUBCLASS.lstrip() + MODEL[end:]
    (tmp_path / "model.py").write_text(text + STRATEGY)
    job: dict[str, Any] = {"source": tmp_path, "epochs": 1, "globalBatchSize": 4}
    environments = runs.server_environments(folder="ParameterServer", workers=1, **job)
    with runs.group(list(environments.values())) as group:
        group.processes[0].wait(120)
        ended = [group.result(0)]
    for strategy in ("Mirrored", "Custom"):
        ended += runs.end("model.py", folder=strategy, strategy=strategy, **job).ended
    for process in ended:
        assert process.code == exits.Exit.USER_ERROR, process
        assert "the trained model could not be saved as model.keras" in process.errors
        assert "Let Wrapped.get_config return the arguments of __init__" in process.errors
    assert not any(log.read_text() for log in tmp_path.rglob(outputs.TRAIN_LOG))


UNTRACKED = """
import tensorflow
pairs = tensorflow.lookup.KeyValueTensorInitializer([1], [1], "int64", "int64")
table = tensorflow.lookup.StaticHashTable(pairs, 0)
def look_up(x):
    return x + tensorflow.cast(table.lookup(tensorflow.cast(x, "int64")), x.dtype)
"""


def test_a_model_that_cannot_be_served_ends_the_run_before_the_first_step(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    text = MODEL.replace("*dense,", "*dense, keras.layers.Lambda(look_up),")
    (tmp_path / "model.py").write_text(UNTRACKED + text)
    job: dict[str, Any] = {"source": tmp_path, "epochs": 1, "globalBatchSize": 4}
    run = runs.end("model.py", strategy="Mirrored", savedModel=True, **job)
    assert run.chief.code == exits.Exit.USER_ERROR, run.chief
    assert "saving the model as saved_model raised" in run.chief.errors
    assert not list(run.output.glob("*model*"))


def test_what_is_written_before_training_leaves_nothing(tmp_path: pathlib.Path) -> None:
    served = tmp_path / "saved_model"
    export.check_for_serving(network(), served, tmp_path / "model.py")
    assert not list(tmp_path.iterdir())
