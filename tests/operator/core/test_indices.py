"""Sets of indices as ranges."""

import hypothesis
import pytest
from hypothesis import strategies as st

from tfparallel_operator.api import job_status, load
from tfparallel_operator.core.status import replica_records


@hypothesis.given(st.frozensets(st.integers(0, 300)))
def test_what_is_written_is_read_back(numbers: frozenset[int]) -> None:
    assert replica_records.parse_indices(replica_records.format_indices(numbers)) == numbers


@pytest.mark.parametrize(
    ("numbers", "text"), [((), ""), ((4,), "4"), ((0, 1, 2), "0-2"), ((7, 0, 2, 1), "0-2,7")]
)
def test_neighbours_make_a_range(numbers: tuple[int, ...], text: str) -> None:
    assert replica_records.format_indices(numbers) == text


@pytest.mark.parametrize(
    "text",
    ["0-99999999999", "9" * 5000, "0-9999,0-9999", "3-1", "one", ",1", "-4"],
)
def test_ranges_that_no_operator_writes_leave_a_job_alone(text: str) -> None:
    with pytest.raises(load.StatusError, match=r"status.replicas.Worker.completed: .*ranges"):
        load.read_status({"status": {"replicas": {"Worker": {"completed": text}}}})


@hypothesis.given(st.frozensets(st.integers(0, job_status.LAST_INDEX), max_size=50))
def test_a_status_takes_what_is_written(numbers: frozenset[int]) -> None:
    text = replica_records.format_indices(numbers)
    assert job_status.ReplicaStatus(completed=text).completed == text
