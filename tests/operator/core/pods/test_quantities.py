"""Quantities as Kubernetes lets people write them, and how memory grows."""

import itertools
import re

import pytest

from tfparallel_operator.api import accelerators, pods, policies, quantities
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
        ("Ei", None),
        ("1i", None),
        ("Gi", 0),
        ("1K", None),
        ("a lot", None),
        ("", None),
        ("1" * quantities.LONGEST, int("1" * quantities.LONGEST)),
        ("1" * (quantities.LONGEST + 1), None),
        ("0." + "1" * 900_000 + "x", None),
    ],
)
def test_a_quantity_is_read_as_kubernetes_does(quantity: str, size: int | None) -> None:
    assert memory.parse(quantity) == size


@pytest.mark.parametrize(
    ("before", "after"), [("1.5Gi", "3072Mi"), ("2Pi", "4096Ti"), ("1e9", "1908Mi"), ("5Pi", "5Pi")]
)
def test_memory_grows_however_it_is_written(before: str, after: str) -> None:
    assert memory.grown(before, POLICY, 1) == after


@pytest.mark.parametrize(("limit", "is_refused"), [("1.05m", False), ("1m", True), ("2m", False)])
def test_a_request_and_its_limit_are_compared_in_thousandths(limit: str, is_refused: bool) -> None:
    resources = pods.Resources(requests={"cpu": "1.1m"}, limits={"cpu": limit})
    assert bool(list(quantities.find_problems((), resources))) is is_refused


def test_the_linear_pattern_takes_what_the_quadratic_one_took() -> None:
    """On all texts of up to five of the characters that matter."""
    quadratic = re.compile(r"([-+]?)([0-9]*\.?[0-9]*)([eE][+-]?[0-9]{1,3}|[kKMGTPEmun]?i?)")
    texts = map("".join, (t for n in range(6) for t in itertools.product("1.e-Ki", repeat=n)))
    for text in texts:
        parts = quadratic.fullmatch(text)
        is_quantity = bool(text) and parts is not None and parts[3] not in ("K", "i")
        assert (quantities.parse(text) is not None) == is_quantity, text


def test_a_count_beyond_what_python_reads_is_none() -> None:
    limits = {"nvidia.com/gpu": "9" * 5000, "amd.com/gpu": "2"}
    assert accelerators.count(limits) == 2
