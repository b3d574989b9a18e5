"""Any cut of any graph: every node has a stage, and every stage gets what it needs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.pipeline import cutting, programs, schedule


@st.composite
def graphs(draw: st.DrawFn) -> graph.Graph:
    """Nodes with one or two outputs that take any tensors before them, and share variables."""
    inputs = draw(st.integers(1, 2))
    count = inputs
    nodes = []
    for index in range(draw(st.integers(1, 8))):
        inputs_of_node = draw(
            st.lists(st.integers(0, count - 1), min_size=1, max_size=3, unique=True)
        )
        outputs_of_node = tuple(range(count, count + draw(st.integers(1, 2))))
        count += len(outputs_of_node)
        nodes.append(
            node(
                index,
                tuple(inputs_of_node),
                outputs_of_node,
                draw(st.sets(st.sampled_from("abcd"))),
            )
        )
    outputs = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3, unique=True))
    masks = [draw(st.none() | st.integers(0, count - 1)) for _ in outputs]
    needed = [*outputs, *(mask for mask in masks if mask is not None)]
    kept = graph.needed(nodes, needed)
    return graph.Graph(
        nodes=kept or tuple(nodes),
        tensors=(graph.Tensor((None,), "float32"),) * count,
        input_names=tuple(f"input_{index}" for index in range(inputs)),
        outputs=tuple(
            graph.Output(f"output_{tensor}", tensor, mask)
            for tensor, mask in zip(outputs, masks, strict=True)
        ),
        input_structure=None,
        output_structure=None,
        variables=dict.fromkeys("abcde"),
    )


def node(
    index: int, inputs_of_node: tuple[int, ...], results: tuple[int, ...], read: set[str]
) -> graph.Node:
    return graph.Node(
        kind=graph.NodeKind.LAYER,
        name=f"node_{index}",
        calls=None,
        arguments=tuple(graph.Edge(tensor) for tensor in inputs_of_node),
        keywords={},
        masks={},
        inputs=inputs_of_node,
        outputs=results,
        variables=tuple(sorted(read)),
    )


@st.composite
def cuts(draw: st.DrawFn) -> tuple[graph.Graph, list[int]]:
    model = draw(graphs())
    places = range(1, len(model.nodes))
    ends = draw(st.lists(st.sampled_from(places), unique=True)) if places else []
    return model, sorted(ends)


@given(cuts())
def test_stages_are_the_nodes_in_order(given_cut: tuple[graph.Graph, list[int]]) -> None:
    model, ends = given_cut
    model_stages = cutting.cut(model, ends)
    assert len(model_stages) == len(ends) + 1
    assert tuple(node for stage in model_stages for node in stage.nodes) == model.nodes
    assert [stage.index for stage in model_stages] == list(range(len(model_stages)))


@given(cuts())
def test_a_stage_knows_all_it_needs_and_is_sent_no_more(
    given_cut: tuple[graph.Graph, list[int]],
) -> None:
    model, ends = given_cut
    for stage in cutting.cut(model, ends):
        readable = {*stage.inputs, *(tensor.tensor for tensor in stage.received)}
        available: set[int] = set()
        used: set[int] = set()
        for graph_node in stage.nodes:
            assert set(graph_node.inputs) <= readable | available
            used.update(graph_node.inputs)
            available.update(graph_node.outputs)
        for output in stage.outputs:
            of_output = {output.tensor, output.tensor if output.mask is None else output.mask}
            assert of_output <= readable | available
            used |= of_output
        assert readable <= used
        assert not readable & available
        assert {transfer.tensor for transfer in stage.sent} <= available


@given(cuts())
def test_what_is_sent_is_received_later_once_and_in_the_same_order(
    given_cut: tuple[graph.Graph, list[int]],
) -> None:
    model_stages = cutting.cut(*given_cut)
    sent = [transfer for stage in model_stages for transfer in stage.sent]
    received = [transfer for stage in model_stages for transfer in stage.received]
    assert len(set(sent)) == len(sent)
    assert sorted(sent) == sorted(received)
    assert all(transfer.source < transfer.target for transfer in sent)
    for source in model_stages:
        for target in model_stages:
            there = [transfer for transfer in source.sent if transfer.target == target.index]
            assert there == [
                transfer for transfer in target.received if transfer.source == source.index
            ]


@given(cuts())
def test_every_output_and_variable_has_one_stage(
    given_cut: tuple[graph.Graph, list[int]],
) -> None:
    model, ends = given_cut
    model_stages = cutting.cut(model, ends)
    outputs = [output for stage in model_stages for output in stage.outputs]
    assert sorted(output.name for output in outputs) == sorted(
        output.name for output in model.outputs
    )
    owned = [key for stage in model_stages for key in stage.owned]
    assert sorted(owned) == sorted(model.variables)
    for stage in model_stages:
        borrowed = dict(stage.borrowed)
        read = {key for stage_node in stage.nodes for key in stage_node.variables}
        assert read <= {*stage.owned, *borrowed}
        assert set(borrowed) <= read
        assert all(owner < stage.index for owner in borrowed.values())
        assert all(key in model_stages[owner].owned for key, owner in borrowed.items())


def test_a_skip_goes_straight_to_the_stage_that_takes_it() -> None:
    model = graph.Graph(
        nodes=tuple(
            node(index, inputs_of_node, (index + 1,), set())
            for index, inputs_of_node in enumerate([(0,), (1,), (2,), (3, 1)])
        ),
        tensors=(graph.Tensor((None,), "float32"),) * 5,
        input_names=("first",),
        outputs=(graph.Output("last", 4, None),),
        input_structure=None,
        output_structure=None,
        variables={},
    )
    first, second, third = cutting.cut(model, [1, 3])
    assert first.sent == (cutting.Transfer(0, 1, 1), cutting.Transfer(0, 2, 1))
    assert second.received == (cutting.Transfer(0, 1, 1),)
    assert third.received == (cutting.Transfer(0, 2, 1), cutting.Transfer(1, 2, 3))


def test_a_pipeline_knows_masks_and_shared_weights() -> None:
    model = graph.Graph(
        nodes=(
            node(0, (0,), (1, 2), {"table"}),
            node(1, (1,), (3,), {"own"}),
            node(2, (3, 2), (4,), {"table"}),
        ),
        tensors=tuple(
            graph.Tensor((None,), dtype)
            for dtype in ("int32", "float32", "bool", "bfloat16", "float64")
        ),
        input_names=("tokens",),
        outputs=(graph.Output("output", 4, 2),),
        input_structure=None,
        output_structure=None,
        variables={"own": None, "table": None},
    )
    pipeline = programs.of_stages(model, cutting.cut(model, [1, 2]), 4, schedule.gpipe)
    assert (pipeline.count, pipeline.microbatches) == (3, 4)
    assert pipeline.transfers == (
        cutting.Transfer(0, 1, 1),
        cutting.Transfer(0, 2, 2),
        cutting.Transfer(1, 2, 3),
    )
    assert pipeline.without_gradient == {2}
    assert pipeline.shared == (("table", (0, 2)),)


@pytest.mark.parametrize("ends", [[0], [4], [2, 2], [3, 1]])
def test_a_stage_without_nodes_is_an_error(ends: list[int]) -> None:
    nodes = tuple(node(index, (index,), (index + 1,), set()) for index in range(4))
    model = graph.Graph(
        nodes=nodes,
        tensors=(graph.Tensor((None,), "float32"),) * 5,
        input_names=("first",),
        outputs=(graph.Output("last", 4, None),),
        input_structure=None,
        output_structure=None,
        variables={},
    )
    with pytest.raises(ValueError, match="of 4 nodes are empty"):
        cutting.cut(model, ends)
