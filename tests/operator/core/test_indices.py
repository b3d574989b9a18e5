"""Sets of indices as ranges."""

import hypothesis
import pytest
from hypothesis import strategies as st

from tfparallel_operator.core import indices


@hypothesis.given(st.frozensets(st.integers(0, 300)))
def test_what_is_written_is_read_back(given: frozenset[int]) -> None:
    assert indices.parse(indices.format_ranges(given)) == given


@pytest.mark.parametrize(
    ("given", "text"), [((), ""), ((4,), "4"), ((0, 1, 2), "0-2"), ((7, 0, 2, 1), "0-2,7")]
)
def test_neighbours_make_a_range(given: tuple[int, ...], text: str) -> None:
    assert indices.format_ranges(given) == text
