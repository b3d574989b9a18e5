"""Schedules and what stages send each other: complete, bounded, free of deadlock."""

import dataclasses
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testing.trainer import simulation
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.pipeline import cutting, programs, schedule

ALL = (schedule.gpipe, schedule.one_forward_one_backward)
counts = st.integers(1, 6)


@st.composite
def pipelines(draw: st.DrawFn) -> programs.PipelineSpec:
    """Any number of stages in a row, with skips over stages and tensors without a gradient."""
    count = draw(counts)
    places = st.integers(0, count - 1)
    row = [cutting.Transfer(stage, stage + 1, stage) for stage in range(count - 1)]
    skips = [
        cutting.Transfer(source, target, count + index)
        for index, (source, target) in enumerate(draw(st.lists(st.tuples(places, places))))
        if source < target
    ]
    tensors = st.sampled_from([skip.tensor for skip in skips]) if skips else st.nothing()
    sharing = st.sets(places, min_size=2).map(sorted).map(tuple)
    shared = draw(st.lists(sharing, max_size=3)) if count > 1 else []
    return programs.PipelineSpec(
        count=count,
        microbatches=draw(st.integers(1, 8)),
        order=draw(st.sampled_from(ALL)),
        transfers=(*row, *skips),
        without_gradient=frozenset(draw(st.sets(tensors))),
        shared=tuple((f"weight_{index}", members) for index, members in enumerate(shared)),
    )


@given(st.sampled_from(ALL), counts, counts, st.data())
def test_each_microbatch_goes_forward_then_backward_once(
    order: schedule.Schedule, count: int, microbatches: int, data: st.DataObject
) -> None:
    stage = data.draw(st.integers(0, count - 1))
    actions = list(order(count, microbatches, stage))
    assert len(actions) == 2 * microbatches
    for microbatch in range(microbatches):
        forward = actions.index(schedule.Action(schedule.Pass.FORWARD, microbatch))
        backward = actions.index(schedule.Action(schedule.Pass.BACKWARD, microbatch))
        assert forward < backward


@given(counts, st.integers(1, 12), st.data())
def test_one_forward_one_backward_holds_no_more_than_stages_follow(
    count: int, microbatches: int, data: st.DataObject
) -> None:
    stage = data.draw(st.integers(0, count - 1))
    bounded = schedule.peak_microbatches(
        schedule.one_forward_one_backward(count, microbatches, stage)
    )
    assert bounded == min(count - stage, microbatches)
    assert schedule.peak_microbatches(schedule.gpipe(count, microbatches, stage)) == microbatches


@pytest.mark.parametrize("order", ALL)
@pytest.mark.parametrize(("count", "microbatches", "stage"), [(2, 0, 0), (2, 1, 2), (2, 1, -1)])
def test_a_stage_that_does_not_exist_is_an_error(
    order: schedule.Schedule, count: int, microbatches: int, stage: int
) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        list(order(count, microbatches, stage))


@given(pipelines())
def test_all_stages_come_to_their_end(pipeline: programs.PipelineSpec) -> None:
    outcome = simulation.simulate(programs.lists(pipeline))
    assert not outcome.pending, str(outcome)
    assert str(outcome) == "every rank comes to its end"


@given(pipelines())
def test_a_stage_works_in_the_order_of_its_schedule(pipeline: programs.PipelineSpec) -> None:
    for stage, steps in programs.lists(pipeline).items():
        work = [step for step in steps if isinstance(step, schedule.Action)]
        assert work == list(pipeline.order(pipeline.count, pipeline.microbatches, stage))


@given(pipelines())
def test_a_stage_takes_before_it_works_and_gives_what_it_has(
    pipeline: programs.PipelineSpec,
) -> None:
    messages: set[programs.Collective] = set()
    for stage, steps in programs.lists(pipeline).items():
        done: list[object] = []
        for step in steps:
            if isinstance(step, schedule.Action):
                done.append(step)
                continue
            if not isinstance(step.operation, programs.Message):
                assert len(done) == 2 * pipeline.microbatches
                continue
            source, target = step.ranks
            action = schedule.Action(step.operation.work, step.operation.microbatch)
            assert (action in done) == (stage == source)
            assert stage in (source, target)
            messages.add(step)
        collectives = [step for step in steps if isinstance(step, programs.Collective)]
        assert len(set(collectives)) == len(collectives)
    constant = pipeline.without_gradient
    back = [transfer for transfer in pipeline.transfers if transfer.tensor not in constant]
    assert len(messages) == pipeline.microbatches * (len(pipeline.transfers) + len(back))


@given(pipelines(), st.integers(1, 3), st.integers(1, 2), st.booleans())
def test_all_ranks_of_a_mesh_come_to_their_end(
    pipeline: programs.PipelineSpec, data: int, tensor: int, shards_optimizer: bool
) -> None:
    mesh = shape.MeshShape(data=data, stage=pipeline.count, tensor=tensor)
    rank_programs = programs.on_mesh(
        [pipeline] * data, mesh, trains=True, shards_optimizer=shards_optimizer
    )
    assert sorted(rank_programs) == list(range(mesh.size))
    outcome = simulation.simulate(rank_programs)
    assert not outcome.pending, str(outcome)
    for steps in rank_programs.values():
        kinds = programs.SumKind
        separate = [
            programs.Sum(kinds.GRADIENTS),
            programs.Sum(kinds.LOSS),
            programs.Sum(kinds.NORM),
        ]
        common = programs.Sum(kinds.GRADIENTS_AND_LOSS)
        has_all = mesh.only_data and not shards_optimizer
        expected = [common] if has_all else separate
        sums = [step.operation for step in steps if isinstance(step, programs.Collective)]
        assert [total for total in sums if total in (*separate, common)] == expected
        axis = shape.Axis.TENSOR
        split = [programs.Sum(kinds.PARTIAL_GRADIENTS, axis), programs.Sum(kinds.SQUARES, axis)]
        assert [total for total in sums if total in split] == (split if tensor > 1 else [])
        of_slices = programs.Sum(kinds.SQUARES, shape.Axis.DATA)
        assert sums.count(of_slices) == shards_optimizer


@given(pipelines(), st.lists(st.integers(0, 4), min_size=1, max_size=3))
def test_places_of_the_data_axis_may_have_other_numbers_of_microbatches(
    pipeline: programs.PipelineSpec, counts: list[int]
) -> None:
    mesh = shape.MeshShape(data=len(counts), stage=pipeline.count)
    variants = [dataclasses.replace(pipeline, microbatches=count) for count in counts]
    rank_programs = programs.on_mesh(variants, mesh, trains=True)
    outcome = simulation.simulate(rank_programs)
    assert not outcome.pending, str(outcome)
    for rank, steps in rank_programs.items():
        work = [step for step in steps if isinstance(step, schedule.Action)]
        assert len(work) == 2 * counts[mesh.coordinates(rank)[shape.Axis.DATA]]


@given(pipelines())
def test_an_evaluation_goes_forward_only(pipeline: programs.PipelineSpec) -> None:
    forwards = dataclasses.replace(pipeline, order=schedule.forwards, shared=())
    mesh = shape.MeshShape(data=2, stage=pipeline.count)
    rank_programs = programs.on_mesh([forwards, forwards], mesh, trains=False)
    assert not simulation.simulate(rank_programs).pending
    works = [
        step.work
        for steps in rank_programs.values()
        for step in steps
        if isinstance(step, schedule.Action)
    ]
    assert works == [schedule.Pass.FORWARD] * pipeline.microbatches * mesh.size


def test_a_mesh_of_other_stages_is_an_error() -> None:
    pipeline = programs.PipelineSpec(count=2, microbatches=1, order=schedule.gpipe, transfers=())
    with pytest.raises(ValueError, match="the mesh has 3 stages, and the pipelines"):
        programs.on_mesh([pipeline], shape.MeshShape(stage=3), trains=True)


@given(pipelines())
def test_one_forward_one_backward_takes_tensors_for_no_more_than_it_holds(
    pipeline: programs.PipelineSpec,
) -> None:
    bounded = dataclasses.replace(pipeline, order=schedule.one_forward_one_backward)
    for stage, steps in programs.lists(bounded).items():
        live: set[int] = set()
        for step in steps:
            if isinstance(step, schedule.Action):
                if step.work is schedule.Pass.BACKWARD:
                    live.remove(step.microbatch)
                else:
                    live.add(step.microbatch)
            elif isinstance(step.operation, programs.Message) and stage == step.ranks[1]:
                live.add(step.operation.microbatch)
            assert len(live) <= bounded.count - stage


@given(st.sampled_from(ALL), counts, st.integers(1, 12))
def test_bubbles_are_those_of_the_formula(
    order: schedule.Schedule, count: int, microbatches: int
) -> None:
    row = tuple(cutting.Transfer(stage, stage + 1, stage) for stage in range(count - 1))
    pipeline = programs.PipelineSpec(
        count=count, microbatches=microbatches, order=order, transfers=row
    )
    outcome = simulation.simulate(programs.lists(pipeline))
    total = max(outcome.finished.values())
    assert total == 2 * (microbatches + count - 1)
    for stage in range(count):
        waited = (total - outcome.busy[stage]) / total
        assert waited == pytest.approx(schedule.bubble(count, microbatches))


def test_the_lists_of_two_stages_are_these() -> None:
    pipeline = programs.PipelineSpec(
        count=2,
        microbatches=2,
        order=schedule.one_forward_one_backward,
        transfers=(cutting.Transfer(0, 1, 7),),
    )
    first, second = programs.lists(pipeline).values()
    assert list(map(str, first)) == [
        "forward of microbatch 0",
        "message of tensor 7 of microbatch 0 among ranks 0, 1",
        "forward of microbatch 1",
        "message of tensor 7 of microbatch 1 among ranks 0, 1",
        "message of gradient of tensor 7 of microbatch 0 among ranks 1, 0",
        "backward of microbatch 0",
        "message of gradient of tensor 7 of microbatch 1 among ranks 1, 0",
        "backward of microbatch 1",
    ]
    assert list(map(str, second)) == [
        "message of tensor 7 of microbatch 0 among ranks 0, 1",
        "forward of microbatch 0",
        "backward of microbatch 0",
        "message of tensor 7 of microbatch 1 among ranks 0, 1",
        "message of gradient of tensor 7 of microbatch 0 among ranks 1, 0",
        "forward of microbatch 1",
        "backward of microbatch 1",
        "message of gradient of tensor 7 of microbatch 1 among ranks 1, 0",
    ]


def test_a_schedule_that_works_too_early_is_an_error() -> None:
    def backward_first(count: int, microbatches: int, stage: int) -> Iterator[schedule.Action]:
        return reversed(list(schedule.gpipe(count, microbatches, stage)))

    pipeline = programs.PipelineSpec(count=1, microbatches=1, order=backward_first, transfers=())
    with pytest.raises(ValueError, match="stage 0: backward of microbatch 0"):
        programs.lists(pipeline)


def test_stages_that_both_send_first_wait_for_each_other() -> None:
    up = programs.Collective((0, 1), "message of an activation")
    down = programs.Collective((1, 0), "message of a gradient")
    outcome = simulation.simulate({0: [up, down], 1: [down, up]})
    assert str(outcome) == (
        "rank 0 waits at message of an activation among ranks 0, 1; "
        "rank 1 waits at message of a gradient among ranks 1, 0"
    )


def test_a_group_waits_for_its_last_member() -> None:
    both, all_three = programs.Collective((0, 1), "x"), programs.Collective((0, 1, 2), "y")
    work = schedule.Action(schedule.Pass.FORWARD, 0)
    lists: dict[int, list[programs.Step]] = {
        0: [work, both, all_three],
        1: [both, all_three],
        2: [all_three],
    }
    outcome = simulation.simulate(lists)
    assert not outcome.pending
    assert outcome.finished == {0: 1.0, 1: 1.0, 2: 1.0}
    assert outcome.busy == {0: 1.0, 1: 0.0, 2: 0.0}
    left = simulation.simulate({0: [all_three], 1: [all_three], 2: [work]})
    assert dict(left.pending) == {0: all_three, 1: all_three}


@given(st.lists(st.tuples(st.sets(st.integers(0, 4), min_size=1), st.integers()), max_size=12))
def test_ranks_that_agree_on_one_order_come_to_their_end(
    order: list[tuple[set[int], int]],
) -> None:
    collectives = [programs.Collective(tuple(sorted(ranks)), tag) for ranks, tag in order]
    lists = {rank: [step for step in collectives if rank in step.ranks] for rank in range(5)}
    assert not simulation.simulate(lists).pending


@pytest.mark.parametrize("ranks", [(1, 2), (0, 0)])
def test_a_collective_has_each_of_its_ranks_once(ranks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"rank 0 takes part in the x among .* not once"):
        simulation.simulate({0: [programs.Collective(tuple(ranks), "x")]})
