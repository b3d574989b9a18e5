"""Plans of real models: as good as brute force, and right about bytes."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest

from testing import repeats
from testing.trainer import planned_graphs, planned_models, split_models
from tfparallel_trainer import errors
from tfparallel_trainer.contract import gpu_types, plan
from tfparallel_trainer.engines.split.model import graph, recording
from tfparallel_trainer.engines.split.planning import (
    blocks,
    choose,
    costs,
    hardware,
    model_costs,
    planner,
    predict,
    search_space,
    shardings,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),  # within Keras
    pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask:UserWarning"),
]


BLOCKS = 16
"""So many blocks can be cut in all ways."""

NODE = costs.NodeCost(
    flops=1e9,
    tensor_bytes=1e3,
    weight_bytes=1e3,
    gradient_bytes=1e3,
    backward=2.0,
    inner_bytes=0.0,
    working_bytes=0.0,
)
"""A product of matrices."""

AT_ONCE = hardware.Link(bandwidth=math.inf, latency=0.0)


@functools.cache
def skeleton_of(name: str) -> Any:
    """A model of this name without weights; building it takes longer than planning it."""
    return split_models.bare(planned_models.REAL[name])


def subject(build: Callable[[], Any], cluster: hardware.DeviceCluster) -> costs.Subject:
    return subject_of(recording.record(split_models.bare(build)), cluster)


def subject_of(
    recorded: graph.Graph, cluster: hardware.DeviceCluster, optimizer: Any = None
) -> costs.Subject:
    slots_of_weights, fixed = planner.optimizer_state(
        optimizer or keras.optimizers.Adam(), recorded.variables
    )
    known_costs = model_costs.estimate_costs(recorded, slots_of_weights, fixed)
    times = [costs.estimated(node, cluster.device) for node in known_costs.nodes]
    return costs.Subject(
        model=recorded,
        costs=known_costs,
        times=times,
        cluster=cluster,
        shardings_of=shardings.shardings_of(recorded, times, cluster),
    )


ORDINARY = ("MobileNetV2", "decoder", "lstm")
"""Of the models as people train them."""


@pytest.mark.parametrize("name", repeats.some(planned_models.REAL, ORDINARY))
def test_planning_repeats_to_the_byte(name: str) -> None:
    model = skeleton_of(name)
    cluster = hardware.DeviceCluster(processes=4)

    def planned(constraints: search_space.Constraints) -> plan.Plan:
        return choose.plan_for(subject_of(recording.record(model), cluster), constraints)

    assert len({planned(search_space.Constraints()).model_dump_json() for _ in range(3)}) == 1
    split_plan = planned(search_space.Constraints(mesh={"stage": 4}, microbatches=8))
    assert sorted(split_plan.order) == list(range(len(recording.record(model).nodes)))
    assert plan.Plan.model_validate_json(split_plan.model_dump_json(by_alias=True)) == split_plan
    assert split_plan.bubble == plan.bubble(split_plan.spans, len(split_plan.stages))
    assert 0 < split_plan.message_share < split_plan.bubble < 1


def part(model: graph.Graph, most: int) -> graph.Graph:
    """The first nodes of a model, as many as make so few blocks when those in series are joined."""
    low, high = 1, len(model.nodes)
    while low < high:
        middle = (low + high + 1) // 2
        some = dataclasses.replace(model, nodes=model.nodes[:middle])
        if len(blocks.condense(some, [1.0] * middle, most)) <= most:
            low = middle
        else:
            high = middle - 1
    nodes = model.nodes[:low]
    last = graph.Output("last", nodes[-1].outputs[0], None)
    return dataclasses.replace(model, nodes=nodes, outputs=(last,))


@pytest.mark.parametrize("name", repeats.some(planned_models.REAL, ORDINARY))
def test_no_cut_is_much_better_where_all_can_be_tried(name: str) -> None:
    cluster = hardware.DeviceCluster(processes=2)
    recorded = part(recording.record(skeleton_of(name)), BLOCKS)
    model_subject = subject_of(recorded, cluster)
    constraints = search_space.Constraints(mesh={"stage": 2}, microbatches=4)
    split_plan = choose.plan_for(model_subject, constraints)
    weights = [node_time.each for node_time in model_subject.times]
    few = blocks.condense(model_subject.model, weights, BLOCKS)
    assert 4 <= len(few) <= BLOCKS
    [setting] = search_space.every(constraints, cluster.size)
    assert split_plan.step_seconds <= 1.05 * brute_force(model_subject, few, setting)


def brute_force(
    model_subject: costs.Subject, few: Sequence[blocks.Block], setting: search_space.Setting
) -> float:
    """The shortest step of all cuts into two stages.

    A step takes at least what each of its stages computes. So cuts are tried in the order of that,
    until it exceeds the shortest step that was found: no other can be shorter.
    """
    tables = planned_graphs.tables_of(model_subject, few)
    cluster = dataclasses.replace(model_subject.cluster, inside=AT_ONCE, across=AT_ONCE)
    alone = dataclasses.replace(model_subject, cluster=cluster)
    rows, loads = planned_graphs.tables_of(alone, few).matrices(setting)
    last = len(tables.downsets) - 1
    busy = np.maximum(rows[0][0] + loads[0][0], rows[1][:, last] + loads[1][:, last])
    best = math.inf
    for index in np.argsort(busy):
        if busy[index] >= best:
            break
        path = (0, int(index), last)
        best = min(best, predict.predict(tables, path, setting).step_seconds)
    return best


@pytest.mark.parametrize(
    "name",
    repeats.some(
        [*split_models.ALL, "decoder", "lstm"], ["shared", "several", "own_layers", "lstm"]
    ),
)
def test_bytes_of_parameters_gradients_and_slots_are_exact(name: str) -> None:
    build = {**split_models.ALL, **planned_models.REAL}[name]
    recorded = recording.record(split_models.bare(build))
    model = split_models.eager(build)

    def size(variables: Any) -> int:
        return sum(math.prod(variable.shape) * variable.value.dtype.size for variable in variables)

    for optimizer in ("SGD", "Adam", "Adafactor", "Nadam", "Lion", "Muon"):
        planned_optimizer, real = (getattr(keras.optimizers, optimizer)() for _ in range(2))
        model_subject = subject_of(recorded, hardware.DeviceCluster(), planned_optimizer)
        [only] = choose.plan_for(model_subject, search_space.Constraints(mesh={})).stages
        real.build(model.trainable_variables)
        assert only.holds.parameters == size(model.variables)
        assert only.holds.gradients == size(model.trainable_variables)
        assert only.holds.slots == size(real.variables)


def test_memory_is_a_hard_limit() -> None:
    cluster = hardware.DeviceCluster(processes=4)
    model_subject = subject(planned_models.perceptron, cluster)
    replicas = search_space.Constraints(mesh={"data": 4})
    limit = choose.plan_for(model_subject, replicas).stages[0].holds.peak * 6 // 10
    tight = hardware.DeviceCluster(processes=4, device=hardware.Device(memory=limit))
    model_subject = dataclasses.replace(model_subject, cluster=tight)
    with pytest.raises(errors.BadConfigurationError, match="does not fit 4 devices"):
        choose.plan_for(model_subject, replicas)
    split_plan = choose.plan_for(model_subject, search_space.Constraints())
    assert split_plan.mesh.data < 4
    assert all(stage.holds.peak <= limit for stage in split_plan.stages)
    assert any(
        "does not fit: a device lacks" in alternative.what
        for alternative in split_plan.alternatives
    )


def test_what_does_not_fit_says_by_how_much_and_where() -> None:
    tight = hardware.DeviceCluster(processes=2, device=hardware.Device(memory=10 * 2**20))
    with pytest.raises(errors.BadConfigurationError) as caught:
        choose.plan_for(subject(planned_models.perceptron, tight), search_space.Constraints())
    sentence = str(caught.value)
    assert "does not fit 2 devices of 10 MiB" in sentence
    assert "a device of stage" in sentence
    assert "too much: parameters" in sentence
    assert "The model fits on 16 devices (tensor 16, microbatches 1), or on devices of" in sentence


def test_a_gpu_has_the_memory_and_the_speed_of_its_type() -> None:
    cores, gpus = (
        choose.plan_for(subject(planned_models.perceptron, cluster), search_space.Constraints())
        for cluster in (
            hardware.DeviceCluster(processes=2),
            hardware.DeviceCluster.of_type(2, 1, gpu_types.DEVICE_TYPES["L4"]),
        )
    )
    assert gpus.step_seconds < cores.step_seconds
    assert (gpus.device_type, cores.device_type) == ("L4", None)
    assert gpus.memory == gpu_types.DEVICE_TYPES["L4"].memory
    device = hardware.Device.of_type(gpu_types.DEVICE_TYPES["A100-80GB"], memory=2**30)
    assert device.memory == 2**30
    assert device.flops_of("bfloat16") == 2 * device.flops_of("float32")
    node = dataclasses.replace(NODE, dtype="float16")
    assert costs.estimated(node, device).each < costs.estimated(NODE, device).each


def test_what_does_not_fit_a_gpu_names_one_that_it_fits() -> None:
    tight = hardware.DeviceCluster.of_type(2, 1, gpu_types.DEVICE_TYPES["L4"], 10 * 2**20)
    with pytest.raises(
        errors.BadConfigurationError, match=r"or on devices of .* \(a T4 has it\)\.$"
    ):
        choose.plan_for(subject(planned_models.perceptron, tight), search_space.Constraints())


@pytest.mark.parametrize(
    ("constraints", "sentence"),
    [
        ({"mesh": {"stage": 7}}, r"mesh.stage is 7, but the model makes only 5 calls"),
        ({"mesh": {"stage": 2, "tensor": 2}}, r"does not fit 7 devices"),
        ({"mesh": {"stage": -1, "data": -1}}, r"mesh.stage and mesh.data are both -1"),
        ({"mesh": {"model": 7}}, r"mesh.model is no axis of a mesh: give data, stage"),
        ({"mesh": {"data": 0}}, r"mesh.data is 0: give a number from 1, or -1"),
        (
            {"mesh": {"data": 7}},
            r"batch of 32 examples is not divisible by mesh.data 7 .* multiple of 7",
        ),
        ({"mesh": {"spatial": 7}}, r"mesh.spatial is 7, but no layer of the model"),
    ],
)
def test_what_is_impossible_is_refused(constraints: dict[str, Any], sentence: str) -> None:
    model_subject = subject(planned_models.perceptron, hardware.DeviceCluster(processes=7))
    with pytest.raises(errors.BadConfigurationError, match=sentence):
        choose.plan_for(model_subject, search_space.Constraints(**constraints))


def _normalised() -> Any:
    """Statistics are gathered in the second and in the fourth of seven calls."""
    normal = keras.layers.BatchNormalization(name="normal")
    frozen = keras.layers.BatchNormalization(trainable=False)
    dense = [keras.layers.Dense(64) for _ in range(3)]
    first = keras.Input((64,))
    rows = normal(dense[1](normal(dense[0](first))))
    return keras.Model(first, frozen(dense[2](frozen(rows))))


def _masked() -> Any:
    tokens = keras.Input((5,), dtype="int32")
    rows = keras.layers.Embedding(9, 4, mask_zero=True)(tokens)
    return keras.Model(tokens, keras.layers.Dense(2)(rows))


def test_a_layer_that_gathers_statistics_is_in_one_stage() -> None:
    """A frozen one gathers nothing."""
    model_subject = subject(_normalised, hardware.DeviceCluster(processes=2))
    [together] = model_subject.costs.colocated
    assert {model_subject.model.nodes[index].name for index in together} == {"normal", "normal#2"}
    for stages in (2, 4):
        model_subject = dataclasses.replace(
            model_subject, cluster=hardware.DeviceCluster(processes=stages)
        )
        split_plan = choose.plan_for(
            model_subject, search_space.Constraints(mesh={"stage": stages})
        )
        held_by = [{"normal", "normal#2"}.intersection(stage.nodes) for stage in split_plan.stages]
        assert sorted(map(len, held_by)) == [0] * (stages - 1) + [2]


@pytest.mark.parametrize(
    ("build", "stages", "sentence"),
    [
        (_normalised, 6, r"more than 5 \(normal is called 2 times .* only\): give at most 5"),
        (_masked, 3, r"more than 2 \(a mask alone is no stage\): give at most 2"),
    ],
)
def test_stages_that_cannot_be_are_refused(
    build: Callable[[], Any], stages: int, sentence: str
) -> None:
    model_subject = subject(build, hardware.DeviceCluster(processes=stages))
    with pytest.raises(errors.BadConfigurationError, match=sentence):
        choose.plan_for(model_subject, search_space.Constraints(mesh={"stage": stages}))


def test_an_open_length_has_to_be_declared() -> None:
    def build() -> Any:
        tokens = keras.Input((None,), dtype="int32", name="words")
        return keras.Model(tokens, keras.layers.LSTM(3)(keras.layers.Embedding(5, 4)(tokens)))

    recorded = recording.record(split_models.bare(build))
    with pytest.raises(errors.BadConfigurationError, match=r"words .* --length"):
        model_costs.estimate_costs(recorded, {})
    assert model_costs.estimate_costs(recorded, {}, length=7).nodes[1].flops > 0


def test_the_operations_of_known_networks() -> None:
    """As published: VGG16 15.5, ResNet50 3.9, MobileNetV2 0.3 thousand million products."""
    for name, published in (("VGG16", 15.5), ("ResNet50", 3.9), ("MobileNetV2", 0.3)):
        known_costs = subject_of(
            recording.record(skeleton_of(name)), hardware.DeviceCluster()
        ).costs
        products = sum(node.flops for node in known_costs.nodes) / 2e9
        assert products == pytest.approx(published, rel=0.12)


def test_attention_of_rows_to_themselves_has_operations() -> None:
    first_input = keras.Input((6, 4))
    alone = keras.layers.Attention()([first_input, first_input])
    model = keras.Model(first_input, keras.layers.Attention()([alone, first_input]))
    first, second = (
        node.flops for node in model_costs.estimate_costs(recording.record(model), {}).nodes[-2:]
    )
    assert first == second == 6 * 6 * (4 * 4 + 5)


def test_a_stage_may_take_a_branch_each() -> None:
    """Two towers of equal cost are two stages, though their layers alternate in the model."""

    def build() -> Any:
        first = keras.Input((64,))
        left = right = first
        for _ in range(4):
            left = keras.layers.Dense(64)(left)
            right = keras.layers.Dense(64)(right)
        return keras.Model(first, keras.layers.Add()([left, right]))

    model_subject = subject(build, hardware.DeviceCluster(processes=2))
    split_plan = choose.plan_for(
        model_subject, search_space.Constraints(mesh={"stage": 2}, batch=2**14)
    )
    assert split_plan.order != tuple(range(len(split_plan.order)))
    assert split_plan.stages[0].sent_bytes == 2**14 * 64 * 4
