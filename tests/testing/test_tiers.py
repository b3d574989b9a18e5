"""The tier of a test, and what a unit test must not do."""

import pathlib

import pytest

from testing import paths
from testing.pytest_plugin import essential, graph, guard, scopes, tiers
from testing.pytest_plugin.tiers import Part, Tier


def test_a_test_has_the_highest_tier_that_it_asks_for() -> None:
    assert tiers.tier_of(["tmp_path"]) is Tier.UNIT
    assert tiers.tier_of([], tensorflow=True) is Tier.PROCESS
    assert tiers.tier_of(["processes", "light_cluster"]) is Tier.CLUSTER
    assert tiers.tier_of(["light_cluster", "full_cluster"]) is Tier.E2E
    assert tiers.tier_of(["full_cluster", "full_cluster_with_policies"]) is Tier.LONG
    assert tiers.tier_of([], marked_long=True) is Tier.LONG


def test_an_unknown_tier_is_named() -> None:
    assert tiers.parse("unit, e2e") == {Tier.UNIT, Tier.E2E}
    with pytest.raises(pytest.UsageError, match="slow is none of unit, process, cluster"):
        tiers.parse("unit,slow")


def test_essential_are_unit_tests_and_process_tests_of_a_few_files_without_go() -> None:
    chosen, other = essential.FILES[0], "tests/client/test_plan.py"
    assert tiers.part_of(other, Tier.UNIT, []) is Part.ESSENTIAL
    assert tiers.part_of(chosen, Tier.PROCESS, ["runs"]) is Part.ESSENTIAL
    assert tiers.part_of(chosen, Tier.PROCESS, ["s3"]) is Part.REMAINING
    assert tiers.part_of(chosen, Tier.CLUSTER, ["light_cluster"]) is Part.REMAINING
    assert tiers.part_of(other, Tier.PROCESS, ["runs"]) is Part.REMAINING


def test_essential_files_exist() -> None:
    assert not [file for file in essential.FILES if not (paths.ROOT / file).is_file()]


def test_tensorflow_is_reached_by_imports_at_module_level_alone(tmp_path: pathlib.Path) -> None:
    def reaches(text: str) -> bool:
        file = tmp_path / f"{abs(hash(text))}.py"
        file.write_text(text, encoding="utf-8")
        return graph.reaches_tensorflow(file)

    assert reaches("import tensorflow as tf")
    assert reaches("try:\n    from keras import layers\nexcept ImportError:\n    pass")
    assert reaches("from testing.trainer import split_group")
    assert not reaches("def later():\n    import tensorflow")
    assert not reaches("import typing\nif typing.TYPE_CHECKING:\n    import tensorflow")
    assert not reaches("from testing import paths")


@pytest.mark.parametrize(
    ("address", "offends"),
    [
        (("127.0.0.1", 0), False),
        (("::1", 0, 0, 0), False),
        (("localhost", 0), False),
        ("/tmp/socket", False),
        (("0.0.0.0", 0), True),  # noqa: S104 - no test binds to it
        (("", 0), True),
        (("192.0.2.1", 80), True),
    ],
)
def test_only_loopback_is_free_to_listen_on(address: object, offends: bool) -> None:
    assert (guard.find_offence("socket.bind", (None, address)) is not None) == offends


def test_files_with_real_pods_are_one_scope() -> None:
    tests = [
        "tests/e2e/test_a.py::x",
        "tests/e2e/test_b.py::x",
        "tests/testing/test_cluster_full.py::x",
    ]
    assert {scopes.scope_of(test) for test in tests} == {scopes.REAL_PODS}
    assert scopes.scope_of("tests/client/test_a.py::x") == "tests/client/test_a.py"
