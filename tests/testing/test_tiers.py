"""The tier of a test, and what a change selects."""

import ast
import json
import os
import pathlib
import subprocess
from collections.abc import Iterator

import pytest

from testing import footprints, paths
from testing.pytest_plugin import changed, essential, graph, guard, order, tiers
from testing.pytest_plugin.tiers import Part, Tier

TESTS = paths.ROOT / "tests"
CORE = "operator/tfparallel_operator/core/pods/pod_builder.py"


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


def test_essential_files_exist_and_take_minutes() -> None:
    """`make test` promises ten minutes on two cores, of which installing takes two."""
    assert not [file for file in essential.FILES if not (paths.ROOT / file).is_file()]
    assert sum(order.durations()[file] for file in essential.FILES) <= 500


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


def test_imports_are_parsed_again_when_a_file_has_changed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, kept = tmp_path / "module.py", tmp_path / "build/imports.json"
    module.write_text("import json")
    parsed = graph.Parsed(kept)
    assert parsed.imports(module).at_once == {"json"}
    parsed.keep()

    def refuse(*_: object) -> None:
        raise AssertionError("parsed again")

    with monkeypatch.context() as patch:
        patch.setattr(ast, "parse", refuse)
        assert graph.Parsed(kept).imports(module).at_once == {"json"}
    module.write_text("import tensorflow")
    assert graph.Parsed(kept).imports(module).at_once == {"tensorflow"}


@pytest.mark.parametrize(
    "name",
    [
        "contract/test_contract",
        "engines/split/test_split_schedule",
        "engines/split/test_split_cuts",
    ],
)
def test_pure_tests_of_the_trainer_need_no_tensorflow(name: str) -> None:
    assert not graph.reaches_tensorflow(TESTS / f"trainer/{name}.py")


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


@pytest.mark.parametrize(("program", "offends"), [("fc-list", False), ("kubectl", True)])
def test_the_search_for_fonts_is_no_process_of_a_test(program: str, offends: bool) -> None:
    arguments = (program, [program, "--format"], None, None)
    assert (guard.find_offence("subprocess.Popen", arguments) is not None) == offends


def selects(files: set[str], test: str, *, starts: bool) -> bool:
    return changed.Changes(paths.ROOT, frozenset(files)).select_test(TESTS / test, starts=starts)


def test_a_change_of_the_core_selects_what_it_decides_and_little_that_carries_it_out() -> None:
    assert selects({CORE}, "operator/core/pods/test_pod_builder.py", starts=False)
    assert selects({CORE}, "operator/engine/run/test_reconcile.py", starts=False)
    assert selects({CORE}, "operator/engine/test_life.py", starts=True)
    assert not selects({CORE}, "operator/engine/test_sidecars.py", starts=True)
    assert not selects({CORE}, "e2e/test_digits.py", starts=True)
    assert not selects({CORE}, "trainer/engines/split/test_split_schedule.py", starts=False)


def test_a_change_of_the_contract_selects_everything() -> None:
    change = {"trainer/tfparallel_trainer/contract/exits.py"}
    assert selects(change, "e2e/test_digits.py", starts=True)
    assert selects(change, "operator/core/test_indices.py", starts=False)


def test_a_change_selects_what_its_processes_run() -> None:
    engine, trainer = "operator/tfparallel_operator/engine/x.py", "trainer/tfparallel_trainer/x.py"
    assert selects({engine}, "operator/engine/test_sidecars.py", starts=True)
    assert not selects({engine}, KILLS, starts=True)
    assert selects({trainer}, KILLS, starts=True)
    assert not selects({trainer}, "trainer/engines/split/test_split_schedule.py", starts=False)
    assert selects({"docs/long-tier-2.md"}, "docs/test_local_page.py", starts=True)


KILLS = "trainer/lifecycle/test_kills.py"
LOOP, MESH, STALL = (
    f"trainer/tfparallel_trainer/{name}.py"
    for name in ("loop/training", "comms/shape", "lifecycle/stall")
)


@pytest.fixture
def record(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A record by which the processes of test_kills ran the loop and nothing else."""
    page = {"commit": "a" * 40, "files": [LOOP, MESH, STALL], "tests": {f"tests/{KILLS}": "0"}}
    file = tmp_path / "footprints.json"
    file.write_text(json.dumps(page), encoding="utf-8")
    monkeypatch.setattr(footprints, "PAGE", file)
    monkeypatch.setattr(footprints, "changed_since", lambda _: frozenset())
    caches = (footprints.read, changed.Changes.select_test)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.usefixtures("record")
def test_a_change_of_the_trainer_selects_whose_processes_ran_it() -> None:
    new = "trainer/tfparallel_trainer/new.py"
    assert selects({LOOP}, KILLS, starts=True)
    assert not selects({STALL}, KILLS, starts=True)
    assert selects({STALL, new}, KILLS, starts=True), "it may run a new file"
    assert selects({STALL}, "trainer/evaluator/test_evaluator.py", starts=True), (
        "it was not measured"
    )


@pytest.mark.usefixtures("record")
@pytest.mark.parametrize(
    ("since", "known"),
    [
        ({MESH}, True),
        ({f"tests/{KILLS}"}, False),
        ({LOOP}, False),
        ({"testing/trainer/models/mlp.py"}, False),
        (None, False),
    ],
)
def test_an_old_record_deselects_nothing_that_may_run_now(
    since: set[str] | None, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop imports the watch for stalls: once it has changed, it may call it."""
    assert paths.ROOT / STALL in graph.files_reached(paths.ROOT / LOOP)
    changed_files = None if since is None else frozenset(since)
    monkeypatch.setattr(footprints, "changed_since", lambda _: changed_files)
    assert selects({STALL}, KILLS, starts=True) is not known


@pytest.mark.usefixtures("processes")
def test_a_commit_that_this_clone_lacks_is_nothing_to_compare_with() -> None:
    assert footprints.changed_since("") is None
    assert footprints.changed_since("0" * 40) is None
    assert footprints.changed_since("HEAD") is not None


@pytest.mark.usefixtures("processes")
def test_uncommitted_and_new_files_have_changed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)  # A hook of git names the repository that it is of.
    for name in ("GLOBAL", "SYSTEM"):
        monkeypatch.setenv(f"GIT_CONFIG_{name}", os.devnull)

    def git(*arguments: str) -> None:
        person = ("-c", "user.name=Test", "-c", "user.email=test@example.test")
        command = ["git", *person, *arguments]
        done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    git("init", "--initial-branch=main")
    for name in ("same", "edited", "committed"):
        (tmp_path / name).write_text("before", encoding="utf-8")
    git("add", ".")
    git("commit", "--message=First")
    git("switch", "--create=branch")
    (tmp_path / "committed").write_text("after", encoding="utf-8")
    git("commit", "--all", "--message=Second")
    (tmp_path / "edited").write_text("after", encoding="utf-8")
    (tmp_path / "new").touch()
    assert changed.Changes.since_main(tmp_path).files == {"committed", "edited", "new"}


def test_the_longest_file_comes_first_and_real_pods_are_one_scope() -> None:
    tests = ["a.py::x", "b.py::x", "tests/e2e/test_a.py::x", "tests/e2e/test_b.py::x", "new.py::x"]
    seconds = {"a.py": 5, "b.py": 70, "tests/e2e/test_a.py": 40, "tests/e2e/test_b.py": 50}
    places = order.longest_first(tests, seconds)
    assert sorted(places, key=places.__getitem__) == [order.REAL_PODS, "b.py", "new.py", "a.py"]
