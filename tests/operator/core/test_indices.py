"""Sets of indices as ranges."""

import hypothesis
import pytest
from hypothesis import strategies as st

from tfparallel_operator.core.status import replica_records


@hypothesis.given(st.frozensets(st.integers(0, 300)))
def test_what_is_written_is_read_back(numbers: frozenset[int]) -> None:
    assert replica_records.parse_indices(replica_records.format_indices(numbers)) == numbers


@pytest.mark.parametrize(
    ("numbers", "text"), [((), ""), ((4,), "4"), ((0, 1, 2), "0-2"), ((7, 0, 2, 1), "0-2,7")]
)
def test_neighbours_make_a_range(numbers: tuple[int, ...], text: str) -> None:
    assert replica_records.format_indices(numbers) == text
