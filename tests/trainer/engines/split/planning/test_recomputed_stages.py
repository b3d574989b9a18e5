"""Segments end where little crosses, and stages that recompute keep what their segments take."""

import itertools
from typing import Any

import keras
import numpy as np
import pytest

from testing.trainer import planned_models, split_models
from tfparallel_trainer.contract.plan import Plan
from tfparallel_trainer.engines.split.model import graph, recording
from tfparallel_trainer.engines.split.planning import (
    choose,
    hardware,
    planner,
    recomputation,
    search_space,
)


def recorded(build: Any) -> graph.Graph:
    return recording.record(split_models.bare(build))


def test_segments_of_a_chain_are_nearly_the_best_of_all() -> None:
    random = np.random.default_rng(0)
    for _ in range(5):
        widths = random.integers(1, 200, size=9)
        layers = [keras.layers.Dense(int(width), "tanh") for width in widths]
        model = recorded(lambda layers=layers: keras.Sequential([keras.Input((3,)), *layers]))
        costs = planner.subject(model, None, hardware.DeviceCluster()).costs
        kept = recomputation.kept_by_node(model, costs)
        sizes = [4 * int(width) for width in widths]

        def value(ends: tuple[int, ...], kept: Any = kept, sizes: Any = sizes) -> float:
            bounds = itertools.pairwise([0, *ends, len(kept)])
            crossing = sum(sizes[end - 1] for end in ends)
            return float(crossing + max(sum(kept[low:high]) for low, high in bounds))

        every = itertools.chain.from_iterable(
            itertools.combinations(range(1, len(kept)), count) for count in range(len(kept))
        )
        chosen = recomputation.segment_ends(model, costs)
        assert value(chosen) <= 1.05 * min(map(value, every))


def test_no_segment_but_the_last_has_an_output() -> None:
    def build() -> Any:
        x = keras.Input((50,))
        hidden = keras.layers.Dense(50, "tanh")(x)
        early = keras.layers.Dense(2, "softmax")(hidden)
        for _ in range(8):
            hidden = keras.layers.Dense(50, "tanh")(hidden)
        return keras.Model(x, [early, hidden])

    model = recorded(build)
    costs = planner.subject(model, None, hardware.DeviceCluster()).costs
    first = min(
        index
        for index, node in enumerate(model.nodes)
        if set(node.outputs) & set(model.output_tensors())
    )
    assert all(end <= first for end in recomputation.segment_ends(model, costs))


def plan_decoder(*, recomputes: bool, microbatches: int, stages: int) -> Plan:
    model = recorded(planned_models.decoder)
    constraints = search_space.Constraints(
        mesh={"stage": stages}, microbatches=microbatches, batch=64, recomputes=recomputes
    )
    cluster = hardware.DeviceCluster(processes=stages)
    return choose.plan_for(planner.subject(model, None, cluster), constraints)


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (2, 8)])
def test_recomputation_takes_less_memory_and_more_time(stages: int, microbatches: int) -> None:
    kept, recomputed = (
        plan_decoder(recomputes=recomputes, microbatches=microbatches, stages=stages)
        for recomputes in (False, True)
    )
    for stage, other in zip(recomputed.stages, kept.stages, strict=True):
        # The last stage keeps its last segment until its backward pass ends.
        assert stage.holds.activations < 0.65 * other.holds.activations
        assert stage.holds.peak < other.holds.peak
    forward, backward = (
        sum(stage.forward_seconds for stage in kept.stages),
        sum(stage.backward_seconds for stage in kept.stages),
    )
    again = sum(stage.backward_seconds for stage in recomputed.stages) - backward
    assert 0.5 * forward < again < forward  # the last stage keeps its last segment
    assert recomputed.step_seconds > kept.step_seconds
