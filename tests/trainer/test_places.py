"""Refusals name the user's file and line: of the function to change, or of what raised."""

import pathlib
from typing import Any

import keras
import pytest
import tensorflow as tf

from testing.trainer import ranks
from tfparallel_trainer import errors, user
from tfparallel_trainer.comms import collectives, devices, shape
from tfparallel_trainer.data import arrays
from tfparallel_trainer.keras_fit import callbacks
from tfparallel_trainer.loop import exit_report
from tfparallel_trainer.objective import checks, independence, loss, replica, synchrony

MODEL = """import keras
import numpy


class Router(keras.layers.Layer):
    def call(self, x):
        self.add_loss(keras.ops.sum(x) ** 2)
        return x


def in_batch(y, y_pred):
    return keras.ops.mean((y - y_pred) / keras.ops.sum(y_pred))


def build_model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), Router(name="router")])


def compile_model(model):
    optimizer = "sgd"
    model.compile(optimizer, in_batch)


def training_data():
    return numpy.zeros((2, 3)), [1, 2]
"""


@pytest.fixture
def module(tmp_path: pathlib.Path) -> user.Module:
    (tmp_path / "model.py").write_text(MODEL)
    return user.load(tmp_path, "model.py")


def translated(module: user.Module, error: Exception) -> str:
    return str(exit_report.translate(error, True, module))


@pytest.mark.parametrize(
    ("function", "line"),
    [("build_model", ":15"), ("compile_model", ":21"), ("callbacks", ""), ("", "")],
)
def test_the_place_is_the_line_of_the_function_and_of_its_call_of_compile(
    module: user.Module, function: str, line: str
) -> None:
    error = errors.UserCodeError("What is wrong.", function=function)
    assert translated(module, error) == f"{module.path}{line}: What is wrong."
    assert translated(module, error) == f"{module.path}{line}: What is wrong.", "once"


def test_the_functions_of_a_script_have_no_line_of_the_trainer(tmp_path: pathlib.Path) -> None:
    script = user.Module(tmp_path / "train.py", {"build_model": ranks.module})
    assert script.find_place("build_model") == str(tmp_path / "train.py")


def test_what_the_users_code_raises_has_its_line(module: user.Module) -> None:
    with (
        pytest.raises(errors.UserCodeError) as caught,
        user.guard(module.path, "compile_model raised"),
    ):
        module.functions["compile_model"](None)
    assert str(caught.value).startswith(f"{module.path}:21: compile_model raised AttributeError: ")


def test_a_data_function_is_named_with_the_part_and_its_line(module: user.Module) -> None:
    with pytest.raises(errors.UserCodeError) as caught, module.concerns("training_data"):
        arrays.checked(module.call("training_data"), "training_data")
    assert translated(module, caught.value) == (
        f"{module.path}:24: training_data returns 1 in y, where an array belongs (a list is taken "
        "as several arrays): make it an array with numpy.asarray."
    )


def test_the_history_of_an_operation_names_the_users_line(module: user.Module) -> None:
    history = "\n".join(
        (
            "Graph execution error:",
            "",
            "Detected at node Equal defined at (most recent call last):",
            f'  File "{module.path}", line 12, in in_batch',
            '  File "/elsewhere/keras/ops.py", line 7, in equal',
            "",
            "{{function_node __inference_7}} Incompatible shapes: [2] vs. [3]",
            "\t [[{{node Equal}}]]",
        )
    )
    error = tf.errors.InvalidArgumentError(None, None, history)
    sentence = translated(module, error)
    assert sentence.startswith(f"{module.path}:12: training raised InvalidArgumentError: ")
    assert "Incompatible shapes: [2] vs. [3]." in sentence
    assert "{{" not in sentence


def test_a_loss_and_what_layers_add_are_named_with_class_and_line(module: user.Module) -> None:
    [term] = loss.terms(_compiled(module), ("output",))
    assert term.title == "The loss in_batch (model.py:11)"
    [term] = loss.terms(_compiled(module), ("mask",))
    assert term.title == "The loss in_batch (model.py:11) of the output 'mask'"
    sample = tf.ones((1, 3)), tf.ones((1, 2)), None
    built = replica.build(module, shape.MeshShape(), 0, "", 0, sample)
    part = tuple(tf.random.uniform((8, size), 1.0, 2.0, seed=1).numpy() for size in (3, 2))
    with pytest.raises(errors.UserCodeError, match="no mean over") as caught:
        independence.check(built, (*part, None))
    assert "The loss in_batch (model.py:11) is no mean" in str(caught.value)
    built.model.compile("sgd", "mse")
    plain = replica.build(
        user.Module(module.path, {**module.functions, "compile_model": _with_mse}),
        *(shape.MeshShape(), 0, "", 0, sample),
    )
    with pytest.raises(errors.UserCodeError, match="no mean over") as caught:
        independence.check(plain, (*part, None))
    assert "What the layer router, Router (model.py:5), adds by add_loss" in str(caught.value)
    assert translated(module, caught.value).startswith(f"{module.path}:15: ")


def _with_mse(model: Any) -> None:
    model.compile("sgd", "mse")


def _compiled(module: user.Module) -> Any:
    model = module.build_model()
    module.compile_model(model)
    return model


class Means(keras.layers.Layer):
    """Asks for a mean over replicas."""

    def call(self, x: Any) -> Any:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.MEAN, x)


def test_a_layer_that_reduces_otherwise_is_named() -> None:
    layer = Means(name="means")
    with (
        pytest.raises(errors.UserCodeError, match=r"^The layer means, Means \(test_places.py:\d+"),
        synchrony.ReplicaContext(collectives.Communicator(0, 1, 0, "")),
    ):
        layer(tf.ones((2,)))


def test_a_model_that_is_not_compiled_is_named() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)], name="tiny")
    with pytest.raises(errors.UserCodeError, match=r"^The model tiny is not compiled") as caught:
        checks.check(model)
    assert caught.value.function == "compile_model"


class Failing(keras.callbacks.Callback):
    """Raises."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        raise KeyError(epoch)


def test_tensorflow_at_import_has_the_place_of_its_operation() -> None:
    tf.ones(())  # from now on it runs
    with pytest.raises(errors.UserCodeError) as caught:
        devices.prepare(2, alone=False, first_operation="model.py:18")
    assert str(caught.value).startswith("model.py:18: The module runs a TensorFlow operation")


def test_installed_code_has_no_line_and_a_users_has() -> None:
    assert user.describe(keras.losses.Dice()) == "Dice"
    assert user.describe(keras.losses.mean_squared_error) == "mean_squared_error"
    assert user.describe(pathlib.Path.cwd) == "cwd"
    assert user.describe(callbacks.Callbacks) == "Callbacks"
    line = Failing.on_epoch_end.__code__.co_firstlineno - 3
    assert user.describe(Failing()) == f"Failing (test_places.py:{line})"
