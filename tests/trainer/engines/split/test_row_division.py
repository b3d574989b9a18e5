"""The arithmetic of rows, against what each output row of a layer reads by definition."""

import itertools

from hypothesis import assume, given
from hypothesis import strategies as st

from tfparallel_trainer.engines.split.layers import row_division

PAD = -1
ranks = st.integers(1, 5)
sizes = st.integers(1, 30)
windows = st.builds(
    row_division.Window,
    length=st.integers(1, 6),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 3),
)


@st.composite
def divisions(draw: st.DrawFn) -> row_division.Spans:
    """Rows divided over ranks in any way in which each rank has one."""
    parts = draw(st.lists(st.integers(1, 8), min_size=1, max_size=5))
    ends = [0, *itertools.accumulate(parts)]
    return tuple(itertools.starmap(range, itertools.pairwise(ends)))


@given(sizes, ranks)
def test_rows_are_divided_evenly(size: int, count: int) -> None:
    assume(size >= count)
    spans = row_division.divide(size, count)
    assert [row for span in spans for row in range(span.start, span.stop)] == list(range(size))
    heights = set(map(len, spans))
    assert max(heights) - min(heights) <= 1


@given(sizes, ranks)
def test_too_few_rows_are_refused(size: int, count: int) -> None:
    try:
        row_division.divide(size, count)
    except ValueError as error:
        assert f"{size} rows are too few for {count} ranks" in str(error)
        assert size < count
    else:
        assert size >= count


def brought(plan: row_division.RowPlan) -> list[list[int]]:
    """The numbers of the rows that each rank has after the messages, in order, and padding."""
    row_numbers = [
        {row for row in range(owned.start, owned.stop) if want.start <= row < want.stop}
        for owned, want in zip(plan.owned, plan.needed, strict=True)
    ]
    for message in plan.messages():
        owned = plan.owned[message.source]
        assert owned.start <= message.span.start < message.span.stop <= owned.stop
        new = set(range(message.span.start, message.span.stop))
        assert not row_numbers[message.target] & new  # nothing is sent twice
        row_numbers[message.target] |= new
    return [
        [PAD] * share.before + sorted(had) + [PAD] * share.after
        for share, had in zip(plan.shares, row_numbers, strict=True)
    ]


@given(divisions(), windows, st.sampled_from(["valid", "same", "causal"]))
def test_each_rank_has_what_its_windows_read(
    owned: row_division.Spans, window: row_division.Window, padding: str
) -> None:
    size = owned[-1].stop
    count = window.output_size(size, padding)
    assume(count >= len(owned))
    plan = row_division.windows(owned, window, padding)
    if padding == "same":
        # as TensorFlow's guide to padding says
        remainder = size % window.stride
        total = max(window.extent - (window.stride if remainder == 0 else remainder), 0)
        above = total // 2
    else:
        above = window.extent - 1 if padding == "causal" else 0
    given_rows = brought(plan)
    for local, share in zip(given_rows, plan.shares, strict=True):
        outputs = (len(local) - window.extent) // window.stride + 1
        assert outputs == len(share.output)
        for index, output in enumerate(range(share.output.start, share.output.stop)):
            taps = [tap * window.dilation for tap in range(window.length)]
            needed_rows = [output * window.stride - above + tap for tap in taps]
            local_taps = [local[index * window.stride + tap] for tap in taps]
            assert local_taps == [row if 0 <= row < size else PAD for row in needed_rows]


@given(divisions(), windows, st.sampled_from(["valid", "same"]), st.integers(0, 3))
def test_transposed_windows_add_what_they_should(
    owned: row_division.Spans, window: row_division.Window, padding: str, more: int
) -> None:
    size = owned[-1].stop
    full = (size - 1) * window.stride + window.extent
    count = size * window.stride if padding == "same" else full + more
    assume(count >= len(owned))
    above = max(full - count, 0) // 2 if padding == "same" else 0
    plan = row_division.transposed(owned, count, window, padding)
    for local, share in zip(brought(plan), plan.shares, strict=True):
        result: dict[int, list[int]] = {}
        for index, row in enumerate(local):
            for tap in range(window.length):
                at = index * window.stride + tap * window.dilation - share.skip
                result.setdefault(at, []).append(row * window.length + tap)
        for index, output in enumerate(range(share.output.start, share.output.stop)):
            needed_rows = [
                row * window.length + tap
                for row in range(size)
                for tap in range(window.length)
                if row * window.stride + tap * window.dilation - above == output
            ]
            assert sorted(result.get(index, [])) == needed_rows


@given(divisions(), st.integers(1, 4))
def test_repeated_rows_are_those_of_the_image(owned: row_division.Spans, factor: int) -> None:
    plan = row_division.repeated(owned, factor)
    for local, share in zip(brought(plan), plan.shares, strict=True):
        repeated = [row for row in local for _ in range(factor)]
        kept = repeated[share.skip : share.skip + len(share.output)]
        assert kept == [row // factor for row in range(share.output.start, share.output.stop)]


@given(divisions(), st.integers(-4, 9), st.integers(-4, 9))
def test_padding_and_cropping_give_the_rows_they_should(
    owned: row_division.Spans, before: int, after: int
) -> None:
    size = owned[-1].stop
    whole = [row if 0 <= row < size else PAD for row in range(-before, size + after)]
    assume(len(whole) >= len(owned))
    plan = row_division.padded(owned, before, after)
    assert [row for local in brought(plan) for row in local] == whole
    assert [*map(len, plan.outputs)] == [len(local) for local in brought(plan)]


def test_bytes_of_a_convolution_are_its_halos() -> None:
    owned = row_division.divide(28, 4)
    plan = row_division.windows(owned, row_division.Window(5), "same")
    assert [plan.sent(rank) for rank in range(4)] == [2, 4, 4, 2]
    assert plan.reach == 1
    wide = row_division.windows(owned, row_division.Window(19), "same")
    assert wide.reach == 2
