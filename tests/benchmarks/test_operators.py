"""The measurements of the operator run, on tiny sizes and with ours alone."""

import dataclasses
import pathlib
import re

import pytest

from benchmarks import results
from benchmarks.operators import churn, contestants, flood, loop, starts, steady
from testing.cluster import handle
from testing.operator import namespaces


async def test_jobs_are_run_to_their_end(
    light_cluster: handle.Cluster, tmp_path: pathlib.Path
) -> None:
    namespaces.install(light_cluster)
    namespace = contestants.Place(light_cluster, namespaces.fresh_name(), tmp_path)
    sample = await starts.sample(contestants.OURS, namespace, 2, 2)
    assert sample.pods > 0
    assert sample.cpu > 0
    assert 20 < sample.resident < 500


@pytest.mark.long
async def test_large_jobs_are_measured(
    light_cluster: handle.Cluster, tmp_path: pathlib.Path
) -> None:
    namespaces.install(light_cluster)
    namespace = contestants.Place(light_cluster, namespaces.fresh_name(), tmp_path)
    assert (await starts.split_row(namespace, results.SMALL)).value > 0
    rows = await loop.rows(namespace, results.SMALL)
    assert len(rows) == 2 + len(loop.HUGE)
    assert all(0 < row.value < 10_000 for row in rows)


@pytest.mark.long
async def test_others_are_measured_in_a_flood(
    light_cluster: handle.Cluster, tmp_path: pathlib.Path
) -> None:
    namespaces.install(light_cluster)
    namespace = contestants.Place(light_cluster, namespaces.fresh_name(), tmp_path)
    # The Lease is renewed twice in this time at least.
    size = dataclasses.replace(results.SMALL, seconds=10)
    delay, gap, memory, repeated, *hostile = await flood.rows(namespace, size)
    assert delay.value > 0
    assert gap.value > 0
    assert 20 < memory.value < 500
    assert repeated.value > 0
    [rate] = re.findall(r"(\d+) events in each second", repeated.detail)
    assert int(rate) > 0
    assert len(hostile) == 4
    assert all(0 < row.value < 500 for row in hostile)


@pytest.mark.long
async def test_jobs_end_and_begin(
    light_cluster_with_nodes: handle.Cluster, tmp_path: pathlib.Path
) -> None:
    namespaces.install(light_cluster_with_nodes)
    namespace = contestants.Place(light_cluster_with_nodes, namespaces.fresh_name(), tmp_path)
    memory, delay, block = await steady.rows(namespace, results.SMALL)
    assert 20 < memory.value < 500
    assert 0 < delay.value < 30
    assert 0 < block.value < 10_000


def test_sides_are_compared_by_their_medians() -> None:
    ours = [starts.Sample(pods, 1.0, 90.0) for pods in (1.0, 2.0, 9.0)]
    theirs = [starts.Sample(pods, 2.0, 60.0) for pods in (8.0, 4.0, 3.0)]
    measured = starts.Taken(ours, theirs)
    time, cpu = starts.compared(100, 10, measured)
    assert (time.value, time.met, cpu.value, cpu.met) == (0.5, True, 0.5, True)
    assert time.detail == "2.00 s (1.00…9.00) against 4.00 s (3.00…8.00)"
    assert cpu.detail.endswith("resident at most 90 MB against 60 MB")


def test_a_quantile_is_read_from_buckets_between_two_moments() -> None:
    end = float("inf")
    before = steady.Counts(0.0, 0.0, 0.0, {0.1: 5.0, 0.5: 5.0, 1.0: 5.0, end: 5.0})
    after = steady.Counts(1.0, 0.0, 0.0, {0.1: 55.0, 0.5: 105.0, 1.0: 105.0, end: 105.0})
    seconds, writes = steady.quantile(0.75, before, after)
    assert seconds == pytest.approx(0.3)
    assert writes == 100
    with pytest.raises(ValueError, match="No status"):
        steady.quantile(0.75, before, before)


def test_memory_is_compared_with_that_of_the_second_quarter() -> None:
    assert churn.grown([10, 100, 100, 110]) == pytest.approx(1.1)
    assert churn.grown([100]) == 1.0
