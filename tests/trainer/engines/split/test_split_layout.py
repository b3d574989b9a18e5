"""Layouts, the costs of changing them, and the choice of how layers are split: all pure."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import communication, layout
from tfparallel_trainer.engines.split.pipeline import schedule

SPATIAL, TENSOR = shape.Axis.SPATIAL, shape.Axis.TENSOR


@given(size=st.integers(1, 40), ranks=st.integers(1, 6), unit=st.sampled_from([1, 2, 3]))
def test_a_dimension_is_divided_as_evenly_as_can_be(size: int, ranks: int, unit: int) -> None:
    size *= unit
    if size // unit < ranks:
        with pytest.raises(ValueError, match=f"cannot be divided over {ranks} ranks"):
            layout.even(TENSOR, size, ranks, unit)
        return
    cut = layout.even(TENSOR, size, ranks, unit)
    rows = [row for index in range(ranks) for row in range(size)[cut.rows(index)]]
    assert rows == list(range(size))
    assert max(cut.sizes) - min(cut.sizes) <= unit
    assert all(size % unit == 0 for size in cut.sizes)
    assert cut.times(3).coarsen(3) == cut


@given(
    shape_=st.lists(st.integers(4, 9), min_size=2, max_size=4),
    degrees=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    data=st.data(),
)
def test_the_parts_of_all_ranks_are_the_tensor(
    shape_: list[int], degrees: tuple[int, int], data: st.DataObject
) -> None:
    first, second = data.draw(st.permutations(range(len(shape_))))[:2]
    tensor_layout = layout.whole(len(shape_))
    tensor_layout = tensor_layout.put(first, layout.even(SPATIAL, shape_[first], degrees[0]))
    tensor_layout = tensor_layout.put(second, layout.even(TENSOR, shape_[second], degrees[1]))
    whole = np.arange(np.prod(shape_)).reshape(shape_)
    owners = np.full(shape_, -1)
    for indices in itertools.product(*map(range, degrees)):
        coordinates = dict(zip((SPATIAL, TENSOR), indices, strict=True))
        part = whole[tensor_layout.part(coordinates)]
        assert part.shape == tensor_layout.local(shape_, coordinates)
        assert all(
            size <= (most or 0)
            for size, most in zip(part.shape, tensor_layout.largest(shape_), strict=True)
        )
        assert (owners[tensor_layout.part(coordinates)] == -1).all()
        owners[tensor_layout.part(coordinates)] = part
    assert (owners == whole).all()
    assert tensor_layout.dimension(SPATIAL) == first
    assert tensor_layout.without(SPATIAL).without(TENSOR).is_whole


@pytest.mark.parametrize(
    ("make", "pattern"),
    [
        (lambda: layout.Cut(TENSOR, (2, 0)), "each rank needs a row"),
        (lambda: layout.Cut(TENSOR, ()), "each rank needs a row"),
        (lambda: layout.Cut(shape.Axis.DATA, (2, 2)), "no layer is split over the axis data"),
        (lambda: layout.Cut(TENSOR, (4, 3)).coarsen(2), "no multiples of 2"),
        (
            lambda: layout.Layout((layout.even(TENSOR, 4, 2), layout.even(TENSOR, 4, 2))),
            "one axis cuts two dimensions",
        ),
    ],
)
def test_impossible_layouts_are_refused(make: object, pattern: str) -> None:
    with pytest.raises(ValueError, match=pattern):
        make()  # type: ignore[operator]


def test_traffic_is_counted_in_bytes() -> None:
    traffic = communication.Traffic(
        kind=communication.CollectiveKind.SUM,
        axis=TENSOR,
        work=schedule.Pass.FORWARD,
        shape=(None, None, 6),
        dtype="bfloat16",
    )
    assert traffic.brought(batch=5) == 5 * 1 * 6 * 2


@given(st.integers(2, 8), st.sampled_from(communication.CollectiveKind))
def test_rings_send_what_arithmetic_says(ranks: int, kind: communication.CollectiveKind) -> None:
    traffic = communication.Traffic(
        kind=kind,
        axis=TENSOR,
        work=schedule.Pass.FORWARD,
        shape=(None, ranks),
        dtype="float32",
    )
    chunk = 4.0 * 3
    """Bytes of one of the parts that a ring of so many ranks divides a tensor into."""
    expected = {
        communication.CollectiveKind.SUM: 2 * (ranks - 1) * chunk,
        communication.CollectiveKind.GATHER: (ranks - 1) * ranks * chunk,
        communication.CollectiveKind.EXCHANGE: (ranks - 1) * chunk,
        communication.CollectiveKind.HALO: ranks * chunk,
    }[kind]
    assert traffic.sent(batch=3, ranks=ranks) == pytest.approx(expected)


def test_what_cannot_travel_is_carried_by_another_type() -> None:
    assert [communication.carried(dtype) for dtype in ("bool", "int8", "bfloat16", "float16")] == [
        "int32",
        "int32",
        "float32",
        "float16",
    ]
    assert all(
        communication.carried(dtype) == dtype
        for dtype in itertools.chain(("int32", "int64"), ("float64",))
    )
