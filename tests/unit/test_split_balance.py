"""The cut of a row of nodes is as good as the best of all cuts."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfparallel_trainer import errors
from tfparallel_trainer.split import balance

costs = st.lists(st.integers(0, 20), min_size=1, max_size=8)


def dearest(given_costs: list[int], ends: list[int]) -> int:
    bounds = [0, *ends, len(given_costs)]
    assert all(low < high for low, high in itertools.pairwise(bounds))
    return max(sum(given_costs[low:high]) for low, high in itertools.pairwise(bounds))


@given(costs, st.data())
def test_no_other_cut_is_better(given_costs: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(given_costs)))
    found = balance.ends([float(cost) for cost in given_costs], count)
    assert len(found) == count - 1
    places = range(1, len(given_costs))
    best = min(
        dearest(given_costs, list(ends)) for ends in itertools.combinations(places, count - 1)
    )
    assert dearest(given_costs, found) == best


def test_a_row_is_cut_where_it_is_dear() -> None:
    assert balance.ends([1, 1, 1, 9, 1, 1], 3) == [3, 4]
    assert balance.ends([5], 1) == []


def test_more_stages_than_calls_are_refused() -> None:
    with pytest.raises(errors.BadConfigurationError, match=r"mesh.stage is 3, .* give at most 2"):
        balance.ends([1.0, 1.0], 3)
