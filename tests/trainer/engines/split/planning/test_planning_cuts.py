"""The planner's cuts are as good as the best of all cuts."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testing.trainer import planned_graphs
from tfparallel_trainer.comms import shape
from tfparallel_trainer.contract import job_file
from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.planning import (
    blocks,
    choose,
    cuts,
    hardware,
    predict,
    search_space,
)

seconds = st.floats(0.0, 10.0)


@st.composite
def stages(draw: st.DrawFn) -> tuple[list[cuts.Matrix], list[cuts.Matrix]]:
    """Rows and loads between any downsets, some of them impossible."""
    size, count = draw(st.integers(2, 6)), draw(st.integers(1, 4))
    rows, loads = [], []
    for _ in range(count):
        row, load = np.full((size, size), np.inf), np.full((size, size), np.inf)
        for pair in itertools.combinations(range(size), 2):
            if draw(st.integers(0, 9)):
                row[pair], load[pair] = draw(seconds), draw(seconds)
        rows.append(row)
        loads.append(load)
    return rows, loads


def brute_force(rows: list[cuts.Matrix], loads: list[cuts.Matrix]) -> float:
    last = len(rows[0]) - 1
    return min(
        (
            cuts.step((0, *inner, last), rows, loads)
            for inner in itertools.combinations(range(1, last), len(rows) - 1)
        ),
        default=np.inf,
    )


@given(stages())
def test_no_other_cut_is_better(given_stages: tuple[list[cuts.Matrix], list[cuts.Matrix]]) -> None:
    rows, loads = given_stages
    best = cuts.best(rows, loads)
    least = brute_force(rows, loads)
    if best is None:
        assert least == np.inf
    else:
        assert cuts.step(best, rows, loads) == pytest.approx(least, rel=1e-9, abs=1e-9)


@given(stages(), st.data(), st.sampled_from([1.0, 1.05, 1.5]))
def test_no_cut_that_is_fast_enough_is_more_even(
    given_stages: tuple[list[cuts.Matrix], list[cuts.Matrix]], data: st.DataObject, share: float
) -> None:
    rows, loads = given_stages
    count = len(rows[0])
    sizes = np.full((count, count), np.inf)
    for pair in itertools.combinations(range(count), 2):
        sizes[pair] = data.draw(st.integers(0, 5))
    most = share * brute_force(rows, loads)

    def largest(path: tuple[int, ...]) -> float:
        return max(float(sizes[pair]) for pair in itertools.pairwise(path))

    def fast(limit: float) -> list[tuple[int, ...]]:
        inner = itertools.combinations(range(1, count - 1), len(rows) - 1)
        every = ((0, *inner_cut, count - 1) for inner_cut in inner)
        return [
            candidate for candidate in every if cuts.step(candidate, rows, loads) <= limit < np.inf
        ]

    # What takes as long as it may is on either side by rounding.
    cut = cuts.evenest(rows, loads, sizes, most * (1 + 1e-9))
    if not fast(most * (1 + 2e-9)):
        assert cut is None
        return
    assert cut is not None
    assert largest(cut) <= min(map(largest, fast(most)))
    even = [
        candidate for candidate in fast(most * (1 + 2e-9)) if largest(candidate) <= largest(cut)
    ]
    fastest = min(
        cuts.step(candidate, rows, loads)
        for candidate in even
        if largest(candidate) == largest(cut)
    )
    assert not any(largest(candidate) < largest(cut) for candidate in even)
    assert cuts.step(cut, rows, loads) == pytest.approx(fastest, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("third", "end"), [(0.1, 2), (2.0, 3)])
def test_weights_are_divided_evenly_where_that_takes_hardly_longer(third: float, end: int) -> None:
    """Behind three of four layers the stages take equally long, behind two they hold as much."""
    node_seconds = [10.0, 10.0 - third, third, 20.0]
    model = planned_graphs.build_graph(
        planned_graphs.chain(4), {f"w{index}": [index] for index in range(4)}
    )
    subject = planned_graphs.subject(
        model, [0.0] * 4, node_seconds, hardware.DeviceCluster(processes=2)
    )
    split_plan = choose.plan_for(
        subject, search_space.Constraints(mesh={"stage": 2}, microbatches=8)
    )
    assert split_plan.ends == (end,)
    other = split_plan.alternatives[0]
    assert other.step_seconds is not None
    is_faster = other.step_seconds < split_plan.step_seconds
    assert is_faster == (end == 2)
    assert ("divides the weights less evenly" in " ".join(split_plan.reasons)) == is_faster


@given(planned_graphs.branched())
def test_downsets_are_all_sets_that_can_come_first(before: list[list[int]]) -> None:
    model = planned_graphs.build_graph(before, {})
    block_graph = blocks.condense(model, [1.0] * len(before), len(before))
    expected = {
        bits
        for bits in range(1 << len(before))
        if all(
            bits >> index & 1
            for index, inputs in enumerate(before)
            if bits >> index & 1
            for index in inputs
        )
    }
    assert set(planned_graphs.downsets(block_graph)) == expected
    some = blocks.some_downsets(block_graph, 6)
    assert set(some) <= expected
    assert (some[0], some[-1]) == (0, (1 << len(before)) - 1)


@given(planned_graphs.branched(12), st.integers(1, 12))
def test_blocks_hold_each_node_once_and_can_run_in_order(
    before: list[list[int]], most: int
) -> None:
    model = planned_graphs.build_graph(before, {})
    block_graph = blocks.condense(model, [1.0] * len(before), most)
    assert sorted(itertools.chain.from_iterable(block.nodes for block in block_graph)) == list(
        range(len(before))
    )
    home = {node: index for index, block in enumerate(block_graph) for node in block.nodes}
    for node, inputs in enumerate(before):
        for index in inputs:
            assert home[index] <= home[node]
            if home[index] != home[node]:
                assert block_graph[home[node]].before >> home[index] & 1
    if before == planned_graphs.chain(len(before)):
        assert len(block_graph) == min(most, len(before))


@given(planned_graphs.branched(7), st.data())
def test_stages_have_work_and_all_of_what_belongs_together(
    before: list[list[int]], data: st.DataObject
) -> None:
    places = range(len(before))
    model = planned_graphs.build_graph(before, {})
    is_mask = [data.draw(st.booleans()) for _ in places[:-1]] + [False]
    model = dataclasses.replace(
        model,
        nodes=tuple(
            dataclasses.replace(node, kind=graph.NodeKind.MASK) if mask else node
            for node, mask in zip(model.nodes, is_mask, strict=True)
        ),
    )
    groups = st.sets(st.sampled_from(places), min_size=2, max_size=3)
    together = [tuple(sorted(group)) for group in data.draw(st.lists(groups, max_size=2))]
    block_graph = blocks.condense(
        model, [1.0] * len(places), data.draw(st.integers(2, len(places)))
    )
    downsets = planned_graphs.downsets(block_graph)
    member = np.array(
        [[downset >> index & 1 for index in range(len(block_graph))] for downset in downsets], float
    )
    places_allowed = blocks.stages(model, block_graph, together, member)
    chains = {0: 0}
    for second, later in enumerate(downsets):
        for first, earlier in enumerate(downsets):
            nodes = {
                node
                for index, block in enumerate(block_graph)
                if (later & ~earlier) >> index & 1
                for node in block.nodes
            }
            expected = (
                later | earlier == later
                and not all(is_mask[node] for node in nodes)
                and all(nodes.isdisjoint(group) or nodes >= set(group) for group in together)
            )
            assert places_allowed[first, second] == expected
            if expected and first in chains:
                chains[second] = max(chains.get(second, 0), chains[first] + 1)
    assert blocks.most_stages(places_allowed) == chains[len(downsets) - 1]


def setting_of(draw: Callable[..., Any], count: int) -> search_space.Setting:
    microbatches = draw(st.sampled_from([1, 2, 4]))
    return search_space.Setting(
        mesh=shape.MeshShape(
            stage=draw(st.integers(1, min(4, count))), data=draw(st.sampled_from([1, 2]))
        ),
        microbatches=microbatches,
        order=draw(st.sampled_from(list(job_file.PipelineSchedule))),
        batch=16,
    )


@given(st.data())
def test_a_chain_is_cut_where_its_step_takes_least(data: st.DataObject) -> None:
    """What the tables say of stages is what adding up their nodes says."""
    count = data.draw(st.integers(1, 8))
    model = planned_graphs.build_graph(planned_graphs.chain(count), {"w": [0, count - 1]})
    several = st.lists(st.integers(0, 20).map(float), min_size=count, max_size=count)
    node_seconds, sizes = data.draw(several), data.draw(several)
    setting = setting_of(data.draw, count)
    tables = planned_graphs.tables_of(planned_graphs.subject(model, sizes, node_seconds))
    rows, loads = tables.matrices(setting)
    path = cuts.best(rows, loads)
    assert path is not None

    def step(ends: tuple[int, ...]) -> float:
        bounds = [0, *ends, count]
        seconds_of_stages = []
        ends_of_stages = []
        for low, high in itertools.pairwise(bounds):
            step_seconds = 3 * sum(node_seconds[low:high]) * setting.examples
            for end in (low, high):
                if 0 < end < count:
                    step_seconds += 2 * (0.01 + sizes[end - 1] * setting.examples / 100.0)
            seconds_of_stages.append(step_seconds)
            weights = 16 * ((low == 0) or (high == count))
            changed = planned_graphs.CLUSTER.device.update
            update = 7 * weights / changed.bandwidth + bool(weights) * changed.weight_seconds
            update += 2 * 2 * (setting.mesh.size - 1) * 0.01  # numbers, over all ranks
            if setting.mesh.data > 1:
                update += 2 * 0.01 + weights / 100.0
            ends_of_stages.append((setting.microbatches - 1) * step_seconds + update)
        return sum(seconds_of_stages) + max(ends_of_stages)

    least = min(
        step(inner_cut) for inner_cut in itertools.combinations(range(1, count), len(rows) - 1)
    )
    assert cuts.step(path, rows, loads) == pytest.approx(least, rel=1e-6)


@pytest.mark.usefixtures("long_computation")
@given(planned_graphs.branched(7), st.data())
def test_a_branched_graph_is_cut_nearly_as_well_as_it_can_be(
    before: list[list[int]], data: st.DataObject
) -> None:
    """A tensor that several stages take is sent several times, which only all cuts tell."""
    count = len(before)
    model = planned_graphs.build_graph(before, {})
    node_seconds = data.draw(
        st.lists(st.integers(1, 20).map(float), min_size=count, max_size=count)
    )
    sizes = data.draw(st.lists(st.integers(0, 20).map(float), min_size=count, max_size=count))
    setting = setting_of(data.draw, count)
    tables = planned_graphs.tables_of(planned_graphs.subject(model, sizes, node_seconds))
    rows, loads = tables.matrices(setting)
    path = cuts.best(rows, loads)
    assert path is not None

    def step(inner_cut: tuple[int, ...]) -> float:
        stage_costs = predict.predict(tables, inner_cut, setting).stages
        seconds_of_stages = [
            stage.forward_seconds + stage.backward_seconds + stage.message_seconds
            for stage in stage_costs
        ]
        ends = [stage.update_seconds for stage in stage_costs]
        count = setting.microbatches - 1
        return sum(seconds_of_stages) + max(
            count * row + end for row, end in zip(seconds_of_stages, ends, strict=True)
        )

    last = len(tables.downsets) - 1
    every = [
        (0, *inner, last)
        for inner in itertools.combinations(range(1, last), len(rows) - 1)
        if all(tables.valid[pair] for pair in itertools.pairwise((0, *inner, last)))
    ]
    assert step(path) <= 1.05 * min(map(step, every))
