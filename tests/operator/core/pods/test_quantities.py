"""Memory as Kubernetes lets people write it, and how it grows."""

import pytest

from tfparallel_operator.api import policies
from tfparallel_operator.core.pods import memory

POLICY = policies.OutOfMemory(max_memory="4096Ti")


@pytest.mark.parametrize(
    ("quantity", "size"),
    [
        ("1024", 1024),
        ("1.5Gi", 3 * 2**29),
        ("2Pi", 2 * 2**50),
        ("1Ei", 2**60),
        ("1E", 10**18),
        (".5M", 500_000),
        ("1e9", 10**9),
        ("1.5E3", 1500),
        ("1500m", 2),
        ("+2", 2),
        ("k", 0),
        ("Pi", None),
        ("1i", None),
        ("Gi", 0),
        ("1K", None),
        ("a lot", None),
        ("", None),
    ],
)
def test_a_quantity_is_read_as_kubernetes_does(quantity: str, size: int | None) -> None:
    assert memory.parse(quantity) == size


@pytest.mark.parametrize(
    ("before", "after"), [("1.5Gi", "3072Mi"), ("2Pi", "4096Ti"), ("1e9", "1908Mi"), ("5Pi", "5Pi")]
)
def test_memory_grows_however_it_is_written(before: str, after: str) -> None:
    assert memory.grown(before, POLICY, 1) == after
