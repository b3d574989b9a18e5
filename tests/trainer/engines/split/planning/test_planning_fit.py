"""What the planner does, and says, where memory is tight."""

import dataclasses
import re
from typing import Any

import keras
import pytest

from testing.trainer import planned_models, split_models
from tfparallel_trainer import errors
from tfparallel_trainer.contract import plan, progress
from tfparallel_trainer.engines.split.model import graph, recording
from tfparallel_trainer.engines.split.planning import (
    choose,
    explain,
    hardware,
    planner,
    search_space,
)
from tfparallel_trainer.engines.split.planning.search_space import Constraints

pytestmark = split_models.MARKS


@pytest.fixture(scope="module")
def perceptron() -> graph.Graph:
    return recording.record(split_models.bare(planned_models.perceptron))


def plan_model(
    model: graph.Graph,
    constraints: Constraints,
    memory: int | None = None,
    devices: int = 4,
    optimizer: Any = None,
) -> plan.Plan:
    cluster = hardware.DeviceCluster(processes=devices, device=hardware.Device(memory=memory))
    subject = planner.subject(model, optimizer or keras.optimizers.Adam(), cluster)
    return choose.plan_for(subject, constraints)


def test_copies_of_the_state_are_counted_for_a_pod(perceptron: graph.Graph) -> None:
    """Ranks of a process that hold the same have one copy of it."""
    cluster = hardware.DeviceCluster(processes=2, devices=2)
    subject = planner.subject(perceptron, keras.optimizers.Adam(), cluster)
    planned = choose.plan_for(subject, Constraints(mesh={"data": 4}))
    size, holds = progress.format_bytes, planned.stages[0].holds
    copied = 2 * 2 * (holds.parameters + holds.slots)  # its own, and those of its partner
    total = copied + 2 * holds.peak
    counted = explain.copying(planned, total)
    assert f"up to {size(copied)} ({size(total)} with the tensors). Count them" in counted
    assert f"is {size(total - 1)}: raise it" in explain.copying(planned, total - 1)
    for_gpus = planned.model_copy(update={"device_type": "A100"})
    assert f"up to {size(copied)}. Count them" in explain.copying(for_gpus, None)


REPLICAS = Constraints(mesh={"data": 4}, shards_optimizer=None)


def test_replicas_share_the_optimizers_state_only_if_a_device_lacks_memory_without(
    perceptron: graph.Graph,
) -> None:
    roomy = plan_model(perceptron, REPLICAS)
    assert not roomy.shard_optimizer
    assert not any("shardOptimizer" in reason for reason in roomy.reasons)
    limit = roomy.stages[0].holds.peak - 1
    tight = plan_model(perceptron, REPLICAS, limit)
    assert tight.shard_optimizer
    assert tight.stages[0].holds.peak <= limit
    [reason] = [reason for reason in tight.reasons if "shardOptimizer" in reason]
    lacking = r"The replicas share the optimizer's state \(shardOptimizer\), because a device lacks"
    assert re.match(lacking, reason)


def test_updates_that_are_long_are_shared_by_many_replicas() -> None:
    """Each of 64 replicas reads and writes a 64th of Adam's state."""

    def build() -> Any:
        rows = keras.Input((2048,))
        return keras.Model(rows, keras.layers.Dense(2048)(keras.layers.Dense(2048)(rows)))

    model = recording.record(split_models.bare(build))
    constraints = Constraints(mesh={"data": 64}, batch=64, shards_optimizer=None)
    shared = plan_model(model, constraints, devices=64)
    assert shared.shard_optimizer
    assert shared.reasons[-1].endswith("(shardOptimizer), because a step is shorter then.")
    unshared = plan_model(
        model, Constraints(mesh={"data": 64}, batch=64, shards_optimizer=False), devices=64
    )
    assert shared.step_seconds < unshared.step_seconds


@pytest.mark.parametrize("optimizer", [keras.optimizers.Lamb(), keras.optimizers.SGD()])
def test_an_optimizer_without_slices_or_state_is_never_shared(
    perceptron: graph.Graph, optimizer: Any
) -> None:
    limit = plan_model(perceptron, REPLICAS, optimizer=optimizer).stages[0].holds.peak
    with pytest.raises(errors.BadConfigurationError) as caught:
        plan_model(perceptron, REPLICAS, limit - 1, optimizer=optimizer)
    assert "shardOptimizer" not in str(caught.value)


def test_what_would_make_a_mesh_fit_is_named_and_does(perceptron: graph.Graph) -> None:
    asked = Constraints(mesh={"data": 4}, microbatches=1)
    limit = plan_model(perceptron, asked).stages[0].holds.peak * 5 // 10
    with pytest.raises(errors.BadConfigurationError) as caught:
        plan_model(perceptron, asked, limit)
    changes = str(caught.value).partition(" The model fits ")[2]
    named = re.match(
        r"on another mesh \((?P<mesh>.*?)\), on 8 devices \((?P<more>.*?)\), "
        r"or on devices of [\d.]+ MiB\.$",
        changes,
    )
    assert named, changes
    for setting, devices in ((named["mesh"], 4), (named["more"], 8)):
        mesh, _, others = setting.partition(", microbatches ")
        axes = dict(part.split() for part in mesh.split(" x "))
        fitting = plan_model(
            perceptron,
            Constraints(
                mesh={axis: int(degree) for axis, degree in axes.items()},
                microbatches=int(others.split(",")[0]),
                shards_optimizer="shardOptimizer" in others,
            ),
            limit,
            devices,
        )
        assert all(stage.holds.peak <= limit for stage in fitting.stages)


def test_activations_fit_in_smaller_batches_and_more_microbatches() -> None:
    def build() -> Any:
        images = keras.Input((32, 32, 3))
        maps = keras.layers.Conv2D(16, 3, activation="relu", padding="same")(images)
        return keras.Model(images, keras.layers.Conv2D(16, 3, activation="relu")(maps))

    model = recording.record(split_models.bare(build))
    asked = Constraints(mesh={}, microbatches=1, batch=32)
    limit = plan_model(model, asked, devices=1).stages[0].holds.peak // 3
    with pytest.raises(errors.BadConfigurationError) as caught:
        plan_model(model, asked, limit, devices=1)
    sentence = str(caught.value)
    assert "The model fits with mesh.microbatches 4, " in sentence
    assert "with a batch of 8, on " in sentence
    for fitting in (
        Constraints(mesh={}, microbatches=4, batch=32),
        Constraints(mesh={}, microbatches=1, batch=8),
    ):
        assert plan_model(model, fitting, limit, devices=1).stages[0].holds.peak <= limit
    for misfit in (
        Constraints(mesh={}, microbatches=2, batch=32),
        Constraints(mesh={}, microbatches=1, batch=16),
    ):
        with pytest.raises(errors.BadConfigurationError):
            plan_model(model, misfit, limit, devices=1)


def test_state_that_replicas_could_share_is_named(perceptron: graph.Graph) -> None:
    asked = Constraints(mesh={"data": 4}, microbatches=1)
    limit = plan_model(perceptron, asked).stages[0].holds.peak - 1
    with pytest.raises(
        errors.BadConfigurationError, match=r"The model fits with mesh\.shardOptimizer, "
    ):
        plan_model(perceptron, asked, limit)
    [setting] = search_space.every(asked, 4)
    assert str(setting) == "data 4, microbatches 1"
    assert search_space.variants(setting, asked, shares_slots=True) == (setting,)


def test_activations_are_computed_again_only_if_a_device_lacks_memory_without() -> None:
    model = recording.record(split_models.bare(planned_models.decoder))
    asked = Constraints(mesh={"stage": 2}, microbatches=4, batch=64, recomputes=None)
    roomy = plan_model(model, asked, devices=2)
    assert not roomy.recompute
    assert not any("recompute" in reason for reason in roomy.reasons)
    limit = max(stage.holds.peak for stage in roomy.stages) * 7 // 10
    tight = plan_model(model, asked, limit, devices=2)
    assert tight.recompute
    assert max(stage.holds.peak for stage in tight.stages) <= limit
    assert tight.step_seconds > roomy.step_seconds
    lacking = r"Backward passes compute activations again \(recompute\), because a device lacks"
    assert re.match(lacking, tight.reasons[-1])
    sentence = r"The model fits with mesh\.recompute, "
    with pytest.raises(errors.BadConfigurationError, match=sentence):
        plan_model(model, dataclasses.replace(asked, recomputes=False), limit, devices=2)


def test_what_holds_less_memory_is_tried_one_by_one_and_together() -> None:
    [setting] = search_space.every(Constraints(mesh={"data": 4}, microbatches=1), 4)
    free = Constraints(mesh={"data": 4}, shards_optimizer=None, recomputes=None)
    tried = [str(variant) for variant in search_space.variants(setting, free, shares_slots=True)]
    assert tried == [
        "data 4, microbatches 1",
        "data 4, microbatches 1, shardOptimizer",
        "data 4, microbatches 1, recompute",
        "data 4, microbatches 1, shardOptimizer, recompute",
    ]
