"""Models that define their training step: the weights of one process on several ranks."""

import pathlib
import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfparallel_trainer
from testing import repeats
from testing.trainer import launch, ranks, weights
from testing.trainer import runs as trainings
from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.mesh import mesh_steps
from tfparallel_trainer.engines.split.model import skeleton
from tfparallel_trainer.engines.strategy import strategy_steps as strategy_steps
from tfparallel_trainer.objective import checks, replica

BATCH = 7


def page() -> str:
    """The example of the documentation."""
    text = (launch.REPOSITORY / "docs" / "how-to/model-interface.md").read_text()
    section = text[text.index("## Training steps of your own") :]
    blocks: list[str] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return blocks[0]


def gan() -> Any:
    names: dict[str, Any] = {}
    exec(compile(page(), "model-interface.md", "exec"), names)  # noqa: S102
    return names["Gan"]()


class Distilled(keras.Model):
    """Learns from a teacher and from labels, by the compiled optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        self.teacher.trainable = False
        self.student = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(2)]
        )
        self.distance = keras.metrics.Mean(name="distance")

    def training_phases(self) -> list[Any]:
        return [tfparallel_trainer.Phase(self.losses_of, self.student, self.optimizer)]

    def losses_of(self, data: Any, training: bool) -> dict[str, Any]:
        x, y, weight = data
        y_pred = self.student(x, training=training)
        distance = keras.losses.mean_squared_error(self.teacher(x, training=False), y_pred)
        self.distance.update_state(distance)
        mistake = keras.losses.mean_squared_error(y, y_pred)
        return {"distillation": distance * 0.3, "mistake": mistake * weight}


def points() -> tuple[Any, None, None]:
    random = np.random.default_rng(0)
    return {"points": random.normal(size=(31, 2)), "noise": random.normal(size=(31, 4))}, None, None


def weighted() -> tuple[Any, Any, Any]:
    random = np.random.default_rng(0)
    return random.normal(size=(31, 3)), random.normal(size=(31, 2)), random.uniform(size=31)


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "gan": (gan, points),
    "distilled": (Distilled, weighted),
}


def compile_model(model: Any) -> None:
    model.compile(keras.optimizers.Adam(0.02))


def by_a_loop(name: str) -> tuple[Any, list[dict[str, float]]]:
    """Train in one process as a `train_step` would; give the model and the losses of the steps."""
    build, data = CASES[name]
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    model = build()
    compile_model(model)
    history = []
    for first in range(0, 31, BATCH):
        batch = keras.tree.map_structure(
            lambda part, at=first: None if part is None else tf.constant(part[at : at + BATCH]),
            data(),
        )
        logs: dict[str, float] = {}
        for phase in model.training_phases():
            variables = phase.layers.trainable_variables
            with tf.GradientTape() as tape:
                means = {
                    key: tf.reduce_mean(value) for key, value in phase.losses(batch, True).items()
                }
                total = tf.add_n(list(means.values()))
            phase.optimizer.apply(tape.gradient(total, variables), variables)
            logs |= {key: float(value) for key, value in means.items()}
        history.append(logs)
    return model, history


def assert_alike(model: Any, other: Any) -> None:
    assert weights.difference(model.get_weights(), other.get_weights()) <= weights.TOLERANCE


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("count", repeats.some([1, 2, 4], [4]))
@pytest.mark.parametrize("name", CASES)
def test_ranks_give_the_weights_of_one_process(name: str, count: int) -> None:
    expected, history = by_a_loop(name)
    build, data = CASES[name]
    replicas, outcomes = ranks.run(ranks.module(build, compile_model), data(), count, BATCH)
    for member in replicas:
        assert_alike(member.model, expected)
    for outcome, logs in zip(outcomes, history, strict=True):
        terms = {name: value for name, value in outcome.losses.items() if name != "loss"}
        assert terms == pytest.approx(logs, rel=1e-9)
        assert outcome.loss == pytest.approx(sum(logs.values()), rel=1e-9)


@pytest.mark.usefixtures("float64")
def test_a_strategy_gives_the_weights_of_one_process() -> None:
    expected, _ = by_a_loop("gan")
    strategy = ranks.strategy(3)
    module = ranks.module(gan, compile_model)
    batches = ranks.feed_of(points(), 3, BATCH)
    with strategy.scope():
        mirror = replica.build(module, shape.MeshShape(), 0, "", 1, batches.sample())
    traced = strategy_steps.ReplicatedModel(strategy, module, mirror)
    step = strategy_steps.StrategyTrainStep(traced, batches.spec)
    for number, batch in enumerate(batches.epoch(0, 0)):
        step(number, batch, frozenset())
    assert_alike(mirror.model, expected)


@pytest.mark.usefixtures("float64")
def test_each_loss_is_evaluated_over_all_examples() -> None:
    build, data = CASES["distilled"]
    module = ranks.module(build, compile_model)
    replicas = ranks.build(module, data(), 3)
    batches = ranks.feed_of(data(), 3, BATCH)
    results = mesh_steps.MeshEvaluator(module, replicas, batches.spec).run(batches.epoch(0, 0))
    losses = replicas[0].model.losses_of(data(), training=False)
    means = {name: float(np.mean(values)) for name, values in losses.items()}
    expected = {**means, "loss": sum(means.values()), "distance": means["distillation"] / 0.3}
    assert results == pytest.approx(expected, rel=1e-9)


@pytest.mark.usefixtures("float64")
def test_the_state_of_all_optimizers_is_saved() -> None:
    (member,) = ranks.run(ranks.module(gan, compile_model), points(), 1, BATCH)[0]
    state = {id(variable) for variable in member.state()}
    for optimizer in (member.model.generator_optimizer, member.model.discriminator_optimizer):
        assert int(optimizer.iterations) == 5
        assert {id(variable) for variable in optimizer.variables} <= state


def phases_of(*phases: Any) -> Callable[[], Any]:
    class Model(Distilled):
        def training_phases(self) -> list[Any]:
            return [phase(self) if callable(phase) else phase for phase in phases]

    return Model


def of_batch(model: Any) -> Any:
    def losses(data: Any, training: bool) -> Any:
        return keras.ops.mean(model.student(data[0]))

    return tfparallel_trainer.Phase(losses, model.student, model.optimizer)


def of_student(model: Any) -> Any:
    return tfparallel_trainer.Phase(model.losses_of, model.student, model.optimizer)


def of_teacher(model: Any) -> Any:
    return tfparallel_trainer.Phase(model.losses_of, model.teacher, model.optimizer)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("build", "pattern"),
    [
        (phases_of(), "gives the losses of no phase"),
        (phases_of(3), "returns 3: let it return a list of tfparallel_trainer.Phase"),
        (phases_of(of_batch), "The loss 'loss' of a phase of Model is one number"),
        (phases_of(of_student, of_student), "give each a name of its own"),
        (phases_of(of_teacher), "and 0 trainable weights"),
    ],
)
def test_phases_that_cannot_be_trained_are_refused(build: Callable[[], Any], pattern: str) -> None:
    with pytest.raises(errors.UserCodeError, match=re.escape(pattern)):
        ranks.build_apart(ranks.module(build, compile_model), weighted(), 2)


@pytest.mark.usefixtures("float64")
def test_a_step_cannot_leave_out_a_part_of_itself() -> None:
    module = ranks.module(Distilled, compile_model)
    replicas = ranks.build_apart(module, weighted(), 1)
    spec = ranks.feed_of(weighted(), 1, BATCH).spec
    with pytest.raises(errors.UserCodeError, match="onNonFiniteLoss is Continue"):
        mesh_steps.MeshTrainStep(module, replicas, spec, BATCH, leaves_out=True)


def test_strategies_that_train_by_the_compiled_loss_refuse() -> None:
    with pytest.raises(errors.UserCodeError, match="strategy is ParameterServer"):
        checks.refuse_phases(Distilled(), "ParameterServer")
    with pytest.raises(errors.UserCodeError, match="strategy is ModelSplit"):
        skeleton.build(ranks.module(Distilled, compile_model), 1)


def test_a_step_of_keras_is_refused_with_the_name_of_the_hook() -> None:
    class Stepping(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            return data

    model = Stepping([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(errors.UserCodeError, match=r"training_phases \(see docs/"):
        checks.check(model)


def test_the_example_of_the_page_trains_on_two_processes(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.py").write_text(page())
    spec = {"epochs": 2, "globalBatchSize": 16, "checkpoint": {"claim": "c"}}
    environments = launch.environments(tmp_path, source, spec, processes=2)
    with runs.group(environments) as group:
        ended = group.wait()
    assert [process.code for process in ended] == [0, 0], ended
    metrics = launch.summary(tmp_path).metrics
    assert {"judge_loss", "fool_loss", "val_judge_loss", "val_fool_loss"} <= set(metrics)
