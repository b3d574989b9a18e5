"""Metrics over several replicas: added up where that is right, and refused where it is not."""

import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing.trainer import ranks, split_ranks
from testing.trainer import runs as trainings
from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.contract import exits
from tfparallel_trainer.engines.mesh import mesh_steps
from tfparallel_trainer.objective import metric_sums

pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # within Keras

RANDOM = np.random.default_rng(3)
EXAMPLES = 12
LABELS = np.tile([0, 1, 2], EXAMPLES // 3)
ONE_HOT = np.eye(3, dtype="float32")[LABELS]
SHARES = RANDOM.dirichlet(np.ones(3), EXAMPLES).astype("float32")
SIGNS = 2 * ONE_HOT - 1
VECTORS = np.abs(RANDOM.normal(size=(EXAMPLES, 3))).astype("float32") + 0.1
CLASSES = RANDOM.integers(0, 3, EXAMPLES)

METRICS: dict[str, tuple[dict[str, Any], Any, Any]] = {  # arguments, targets and predictions
    "AUC": ({}, ONE_HOT, SHARES),
    "Accuracy": ({}, LABELS, CLASSES),
    "BinaryAccuracy": ({}, ONE_HOT, SHARES),
    "BinaryCrossentropy": ({}, ONE_HOT, SHARES),
    "BinaryIoU": ({}, ONE_HOT, SHARES),
    "CategoricalAccuracy": ({}, ONE_HOT, SHARES),
    "CategoricalCrossentropy": ({}, ONE_HOT, SHARES),
    "CategoricalHinge": ({}, ONE_HOT, SHARES),
    "ConcordanceCorrelation": ({}, VECTORS, SHARES),
    "CosineSimilarity": ({}, VECTORS, SHARES),
    "F1Score": ({}, ONE_HOT, SHARES),
    "FBetaScore": ({"beta": 2.0, "threshold": 0.4}, ONE_HOT, SHARES),
    "FalseNegatives": ({}, ONE_HOT, SHARES),
    "FalsePositives": ({"thresholds": [0.2, 0.6]}, ONE_HOT, SHARES),
    "Hinge": ({}, SIGNS, SHARES),
    "IoU": ({"num_classes": 3, "target_class_ids": [0, 2]}, LABELS, CLASSES),
    "KLDivergence": ({}, SHARES, SHARES[::-1]),
    "LogCoshError": ({}, VECTORS, SHARES),
    "Mean": ({}, VECTORS, None),
    "MeanAbsoluteError": ({}, VECTORS, SHARES),
    "MeanAbsolutePercentageError": ({}, VECTORS, SHARES),
    "MeanIoU": ({"num_classes": 3}, LABELS, CLASSES),
    "MeanMetricWrapper": ({"fn": keras.losses.huber}, VECTORS, SHARES),
    "MeanSquaredError": ({}, 1e4 * VECTORS, SHARES),
    "MeanSquaredLogarithmicError": ({}, VECTORS, SHARES),
    "OneHotIoU": ({"num_classes": 3, "target_class_ids": [1]}, ONE_HOT, SHARES),
    "OneHotMeanIoU": ({"num_classes": 3}, ONE_HOT, SHARES),
    "PearsonCorrelation": ({}, VECTORS, SHARES),
    "Poisson": ({}, VECTORS, SHARES),
    "Precision": ({}, ONE_HOT, SHARES),
    "PrecisionAtRecall": ({"recall": 0.5}, ONE_HOT, SHARES),
    "R2Score": ({}, VECTORS, SHARES),
    "Recall": ({"top_k": 2}, ONE_HOT, SHARES),
    "RecallAtPrecision": ({"precision": 0.4}, ONE_HOT, SHARES),
    "RootMeanSquaredError": ({}, VECTORS, SHARES),
    "SensitivityAtSpecificity": ({"specificity": 0.5}, ONE_HOT, SHARES),
    "SparseCategoricalAccuracy": ({}, LABELS, SHARES),
    "SparseCategoricalCrossentropy": ({}, LABELS, SHARES),
    "SparseTopKCategoricalAccuracy": ({"k": 2}, LABELS, SHARES),
    "SpecificityAtSensitivity": ({"sensitivity": 0.5}, ONE_HOT, SHARES),
    "SquaredHinge": ({}, SIGNS, SHARES),
    "Sum": ({}, VECTORS, None),
    "TopKCategoricalAccuracy": ({"k": 2}, ONE_HOT, SHARES),
    "TrueNegatives": ({}, ONE_HOT, SHARES),
    "TruePositives": ({}, ONE_HOT, SHARES),
}


def test_all_metrics_of_keras_are_looked_at() -> None:
    classes = {
        name
        for name, metric_type in vars(keras.metrics).items()
        if inspect.isclass(metric_type) and issubclass(metric_type, keras.metrics.Metric)
    }
    assert classes - {"Metric"} == set(METRICS)


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_of_keras_is_a_sum_over_the_examples(name: str) -> None:
    arguments, *arrays = METRICS[name]
    metric = getattr(keras.metrics, name)(**arguments)

    def update(start: int = 0, stop: int = EXAMPLES) -> None:
        metric.update_state(*(array[start:stop] for array in arrays if array is not None))

    update()
    whole = metric.result()
    states = []
    for start, stop in ((0, 5), (5, EXAMPLES)):
        metric.reset_state()
        update(start, stop)
        states.append([variable.numpy() for variable in metric.variables])
    metric.reset_state()
    assert metric_sums.fault(metric, lambda: update(0, 1)) is None
    added = metric.stateless_result([sum(parts) for parts in zip(*states, strict=True)])
    np.testing.assert_allclose(added, whole, rtol=1e-5)


class Counting(keras.metrics.Metric):
    """A metric of one variable; `change` gives its value from what it was and from the errors."""

    initial: Any = 0.0
    dtype_of_state: str = "float32"

    def __init__(self) -> None:
        super().__init__(name="counting")
        self.state = self.add_variable(
            (), keras.initializers.Constant(self.initial), self.dtype_of_state, name="state"
        )

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.state.assign(self.change(self.state.value, keras.ops.abs(y_pred - y_true)))

    def reset_state(self) -> None:
        self.state.assign(self.initial)

    def change(self, state: Any, wrong: Any) -> Any:
        return state + keras.ops.sum(wrong)

    def result(self) -> Any:
        return self.state


class Integers(Counting):
    dtype_of_state = "int32"

    def change(self, state: Any, wrong: Any) -> Any:
        return state + keras.ops.sum(keras.ops.cast(wrong > 0.5, "int32"))


class Bytes(Counting):
    dtype_of_state = "uint8"

    def change(self, state: Any, wrong: Any) -> Any:
        return state + keras.ops.cast(keras.ops.any(wrong > 0.5), "uint8")


class Asserting(Counting):
    def change(self, state: Any, wrong: Any) -> Any:
        tf.debugging.assert_non_negative(state)
        return state + keras.ops.sum(wrong)


class Large(Counting):
    def change(self, state: Any, wrong: Any) -> Any:
        return state + 3e9 * keras.ops.mean(wrong)


class Piecewise(Counting):
    def change(self, state: Any, wrong: Any) -> Any:
        for _ in range(50):
            state = state + keras.ops.mean(wrong)
        return state


class NotANumber(Counting):
    def change(self, state: Any, wrong: Any) -> Any:
        return state + 0 * keras.ops.log(-1 - keras.ops.sum(wrong))


class Several(keras.metrics.Metric):
    """Uses metrics of Keras."""

    def __init__(self) -> None:
        super().__init__(name="several")
        self.precision = keras.metrics.Precision()
        self.total = keras.Variable(0.0)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.precision.update_state(y_true > 0.5, keras.ops.sigmoid(y_pred))
        self.total.assign_add(keras.ops.sum(y_pred))

    def result(self) -> Any:
        return self.precision.result() + self.total


class Unreachable(Counting):
    """The sample does not change it."""

    def change(self, state: Any, wrong: Any) -> Any:
        return state + keras.ops.sum(keras.ops.cast(wrong > 1e6, "float32"))


SUMS = [Counting, Integers, Bytes, Asserting, Large, Piecewise, NotANumber, Several, Unreachable]


class Maximum(Counting):
    def change(self, state: Any, wrong: Any) -> Any:
        return keras.ops.maximum(state, keras.ops.max(wrong))


class LargeMaximum(Counting):
    def change(self, state: Any, wrong: Any) -> Any:
        return keras.ops.maximum(state, 1e11 * keras.ops.max(wrong))


class MaximumOfNothing(Counting):
    """That of the sample is zero, as it is at the start."""

    def change(self, state: Any, wrong: Any) -> Any:
        return keras.ops.maximum(state, 0 * keras.ops.max(wrong))


class Minimum(Counting):
    initial = np.inf

    def change(self, state: Any, wrong: Any) -> Any:
        return keras.ops.minimum(state, keras.ops.min(wrong))


class Last(Counting):
    def change(self, state: Any, wrong: Any) -> Any:
        return keras.ops.mean(wrong)


class Product(Counting):
    initial = 1.0

    def change(self, state: Any, wrong: Any) -> Any:
        return state * (1 + keras.ops.mean(wrong))


class MovingMetric(Counting):
    def change(self, state: Any, wrong: Any) -> Any:
        return 0.999 * state + 0.001 * keras.ops.mean(wrong)


class LastInteger(Counting):
    dtype_of_state = "int32"

    def change(self, state: Any, wrong: Any) -> Any:
        return keras.ops.sum(keras.ops.cast(wrong > 0.5, "int32"))


class Either(Counting):
    dtype_of_state = "bool"
    initial = False

    def change(self, state: Any, wrong: Any) -> Any:
        return keras.ops.logical_or(state, keras.ops.any(wrong > 0.5))


class Former(Counting):
    """Holds what another variable of it held before."""

    def __init__(self) -> None:
        super().__init__()
        self.former = self.add_variable((), "zeros", name="former")

    def change(self, state: Any, wrong: Any) -> Any:
        self.former.assign(state)
        return super().change(state, wrong)


class Restarted(keras.metrics.Mean):
    """A metric of Keras that a user has made into another one."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.reset_state()
        super().update_state(keras.ops.abs(y_true - y_pred))


class HiddenMetric(keras.metrics.Metric):
    def __init__(self) -> None:
        super().__init__(name="hidden")
        self.state = tf.Variable(0.0)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.state.assign_add(tf.reduce_sum(tf.abs(y_pred - y_true)))

    def result(self) -> Any:
        return self.state


class TracedMetric(Counting):
    @tf.function
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(y_true, y_pred)


class Raw(Counting):
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.state.value.assign_add(keras.ops.sum(y_pred))


DEPENDS = r"what update_state adds to .*state depends on what the metric holds"
NO_SUMS = [
    (Maximum, DEPENDS),
    (LargeMaximum, DEPENDS),
    (MaximumOfNothing, DEPENDS),
    (Minimum, "after reset_state .*state is not zero"),
    (Last, DEPENDS),
    (Product, "after reset_state .*state is not zero"),
    (MovingMetric, DEPENDS),
    (LastInteger, DEPENDS),
    (Either, "state is of type bool"),
    (Former, DEPENDS.replace("state dep", "former dep")),
    (Restarted, DEPENDS.replace("state dep", "total dep")),
    (HiddenMetric, "StatelessScope.* raises RuntimeError: .* is changed behind Keras' back"),
    (TracedMetric, "StatelessScope.* raises RuntimeError: .* is changed behind Keras' back"),
    (Raw, "StatelessScope.* raises AttributeError"),
]

TARGETS = np.array([[0.0], [2.0], [1.0], [3.0], [0.5], [7.0]], "float32")
INPUTS = np.array([[1.0], [1.5], [0.0], [2.0], [0.5], [1.0]], "float32")


def linear() -> keras.Model:
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])


def checked(model: keras.Model) -> None:
    sample = INPUTS[:1], TARGETS[:1], None
    model.compute_metrics(*sample[:2], model(sample[0]), None)
    model.reset_metrics()
    metric_sums.check(model, lambda: model(sample[0], training=False), sample)


@pytest.mark.parametrize("metric", SUMS)
def test_a_sum_of_a_user_is_taken(metric: Callable[[], Any]) -> None:
    model = linear()
    model.compile("sgd", "mse", metrics=["mae"], weighted_metrics=[metric()])
    checked(model)
    assert all(not np.any(variable.numpy()) for variable in model.metrics_variables)


@pytest.mark.parametrize(("metric", "reason"), NO_SUMS)
def test_what_is_no_sum_is_refused(metric: Callable[[], Any], reason: str) -> None:
    model = linear()
    model.compile("sgd", "mse", metrics=["mae", metric()])
    with pytest.raises(errors.UserCodeError, match=reason) as refused:
        checked(model)
    assert f", {metric.__name__} (" in str(refused.value)
    assert "), cannot be added up over replicas" in str(refused.value)


class Watching(keras.layers.Layer):
    """A layer with a metric, which Keras reports, too."""

    def __init__(self, metric: Any) -> None:
        super().__init__()
        self.metric = metric

    def call(self, x: Any) -> Any:
        self.metric.update_state(keras.ops.zeros_like(x), x)
        return x


def test_metrics_of_layers_are_looked_at() -> None:
    for metric in (Counting(), Maximum()):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1), Watching(metric)])
        model.compile("sgd", "mse")
        if type(metric) is Counting:
            checked(model)
        else:
            with pytest.raises(errors.UserCodeError, match=DEPENDS):
                checked(model)


def test_what_a_metric_declares_is_taken_by_its_word() -> None:
    metric = keras.metrics.Metric(name="declared")
    for aggregation in ("mean", "only_first_replica"):
        metric.add_variable((), "ones", aggregation=aggregation)
    assert metric_sums.fault(metric, lambda: None) is None


def test_variables_created_without_add_variable_are_added_up() -> None:
    module = ranks.module(
        linear, lambda model: model.compile("sgd", "mse", metrics=[Several(), "mae"])
    )
    results = []
    for count in (1, 3):
        replicas = ranks.build(module, (INPUTS, TARGETS, None), count)
        batches = ranks.feed_of((INPUTS, TARGETS, None), count, len(INPUTS))
        evaluation = mesh_steps.MeshEvaluator(module, replicas, batches.spec)
        results.append(evaluation.run(batches.epoch(0, 0)))
    assert results[0] == pytest.approx(results[1], rel=1e-5)


def test_a_divided_model_refuses_it_where_a_batch_is_divided() -> None:
    functions: dict[str, Callable[..., Any]] = {
        "build_model": linear,
        "compile_model": lambda model: model.compile("sgd", "mse", metrics=[Maximum()]),
        "training_data": lambda: (INPUTS, TARGETS),
    }
    split_ranks.prepare(
        functions, shape.MeshShape(stage=1, generation=ranks.generation()), 1, batch=2
    )
    with pytest.raises(errors.UserCodeError, match=DEPENDS):
        split_ranks.prepare(
            functions, shape.MeshShape(data=2, generation=ranks.generation()), 1, batch=2
        )


MODEL = """
import keras, numpy, tensorflow as tf
class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="largest")
        self.largest = self.add_variable((), "zeros")
    def update_state(self, y, y_pred, sample_weight=None):
        self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(y)))
    def result(self):
        return self.largest
def build_model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
def compile_model(model):
    model.compile("sgd", "mse", metrics=[Largest()])
def training_data():
    return numpy.ones((8, 3)), numpy.full((8, 2), 5.0)
"""
STRATEGY = """
def build_strategy():
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    return tf.distribute.MirroredStrategy(names)
"""


def test_a_maximum_is_right_on_one_device_and_refused_on_two(runs: trainings.Runs) -> None:
    (runs.folder / "model.py").write_text(MODEL)
    job: dict[str, Any] = {"source": runs.folder, "epochs": 1, "globalBatchSize": 4}
    alone = runs.finish("model.py", folder="alone", **job)
    assert float(alone.summary.metrics["largest"]) == 5
    run = runs.end("model.py", folder="two", devices=2, **job)
    assert run.codes == [exits.Exit.USER_ERROR]
    assert "The metric largest, Largest (" in run.chief.errors
    assert "), cannot be added up over replicas" in run.chief.errors


def test_servers_and_strategies_refuse_it(runs: trainings.Runs) -> None:
    (runs.folder / "model.py").write_text(MODEL + STRATEGY)
    job: dict[str, Any] = {"source": runs.folder, "epochs": 1, "globalBatchSize": 4}
    run = runs.end("model.py", folder="custom", devices=2, strategy="Custom", **job)
    assert run.codes == [exits.Exit.USER_ERROR]
    assert "The metric largest, Largest (" in run.chief.errors
    environments = runs.server_environments(folder="servers", workers=1, **job)
    with runs.group(list(environments.values())) as group:
        group.processes[0].wait(120)
        chief = group.result(0)
    assert chief.code == exits.Exit.USER_ERROR
    assert "The metric largest, Largest (" in chief.errors
