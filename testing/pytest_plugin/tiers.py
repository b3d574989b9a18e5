"""The tier of a test follows from its fixtures and from what its module imports.

`--tier unit,process` selects. Without it, everything but the long tier runs, and of the long tier
what the command line names by file. `--part essential` selects what `make test` runs, and
`--part remaining` what it leaves to `make test-all`.
"""

import enum
import functools
import pathlib
from collections.abc import Collection

import pytest

from testing.pytest_plugin import essential, graph
from testing.trainer import logical_devices


class Tier(enum.IntEnum):
    """What a test needs, from little to much."""

    UNIT = 0
    PROCESS = 1
    CLUSTER = 2
    E2E = 3
    LONG = 4

    @property
    def title(self) -> str:
        """The name on the command line."""
        return self.name.lower()


class Part(enum.StrEnum):
    """A share of the tests of several tiers."""

    ESSENTIAL = "essential"
    REMAINING = "remaining"


FIXTURES = {
    "processes": Tier.PROCESS,
    "long_computation": Tier.PROCESS,
    "runs": Tier.PROCESS,
    "isolated": Tier.PROCESS,
    "s3": Tier.PROCESS,
    "cluster_programs": Tier.CLUSTER,
    "clients": Tier.CLUSTER,
    "cluster": Tier.CLUSTER,
    "light_cluster": Tier.CLUSTER,
    "older_cluster": Tier.CLUSTER,
    "light_cluster_with_nodes": Tier.CLUSTER,
    "upgrade_cluster": Tier.CLUSTER,
    "gang_scheduling_cluster": Tier.CLUSTER,
    "full_cluster": Tier.E2E,
    "full_cluster_with_policies": Tier.LONG,
    "full_cluster_with_queues": Tier.LONG,
    "alpha_gangs_cluster": Tier.LONG,
    "coscheduling_cluster": Tier.LONG,
    "kueue_cluster": Tier.LONG,
}
"""The tiers that fixtures ask for; those that use them ask for the same."""

DEFAULT = frozenset(Tier) - {Tier.LONG}
ONLY_UNIT = frozenset({Tier.UNIT})
TIER = pytest.StashKey[Tier]()
SERIAL = pytest.StashKey[list[str]]()
"""The tests that `--without-serial` left out."""


@pytest.fixture(scope="session")
def long_computation() -> None:
    """Keeps tests that compute for many seconds out of the unit tier: theirs is `process`."""


@pytest.fixture(scope="session")
def processes() -> None:
    """Allows a test to start processes: its tier is `process`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tfparallel")
    group.addoption("--tier", help=f"the tiers to run: {','.join(tier.title for tier in Tier)}")
    group.addoption("--part", choices=[*Part], help="a share of the tests of these tiers")
    group.addoption(
        "--without-serial", action="store_true", help="leave out the tests marked `serial`"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SERIAL] = []
    selected_tiers(config)


def parse(text: str) -> frozenset[Tier]:
    """The tiers that an option names.

    Raises:
        UsageError: there is no such tier.
    """
    names = {name.strip().upper() for name in text.split(",")}
    unknown = sorted(names - set(Tier.__members__))
    if unknown:
        titles = ", ".join(tier.title for tier in Tier)
        raise pytest.UsageError(f"--tier {text}: {unknown[0].lower()} is none of {titles}.")
    return frozenset(Tier[name] for name in names)


def selected_tiers(config: pytest.Config) -> frozenset[Tier] | None:
    """The tiers that the command line asks for, if it does."""
    text = config.getoption("tier")
    return None if text is None else parse(text)


def tier_of(
    fixtures: Collection[str], *, marked_long: bool = False, tensorflow: bool = False
) -> Tier:
    """The highest tier that a test asks for."""
    asked = [FIXTURES[name] for name in fixtures if name in FIXTURES]
    if tensorflow:
        asked.append(Tier.PROCESS)
    if marked_long:
        asked.append(Tier.LONG)
    return max(asked, default=Tier.UNIT)


def item_tier(item: pytest.Item) -> Tier:
    """The tier of a collected test."""
    if TIER not in item.stash:
        item.stash[TIER] = tier_of(
            fixture_names(item),
            marked_long=item.get_closest_marker("long") is not None,
            tensorflow=graph.reaches_tensorflow(item.path),
        )
    return item.stash[TIER]


def part_of(file: str, tier: Tier, fixtures: Collection[str]) -> Part:
    """The share that a test belongs to; the object store of `s3` is built with Go."""
    is_chosen = tier is Tier.PROCESS and file in essential.FILES and "s3" not in fixtures
    return Part.ESSENTIAL if tier is Tier.UNIT or is_chosen else Part.REMAINING


def _item_part(item: pytest.Item) -> Part:
    file = item.path.relative_to(item.config.rootpath).as_posix()
    return part_of(file, item_tier(item), fixture_names(item))


def fixture_names(item: pytest.Item) -> set[str]:
    """The fixtures of a test, and those that its parameters name."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = {value for value in parameters if isinstance(value, str)}
    return {*getattr(item, "fixturenames", ()), *named}


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    """Leave files alone that hold nothing of what is asked for: TensorFlow takes seconds."""
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    if selected_tiers(config) == ONLY_UNIT and graph.reaches_tensorflow(collection_path):
        return True
    if config.getoption("part") == Part.ESSENTIAL and _is_left_out(collection_path, config):
        return True
    return None


def _is_left_out(file: pathlib.Path, config: pytest.Config) -> bool:
    """Whether none of a file's tests is essential, because all use TensorFlow."""
    is_chosen = file.relative_to(config.rootpath).as_posix() in essential.FILES
    return not is_chosen and graph.reaches_tensorflow(file)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Divide the CPU before a module can use TensorFlow.

    Pytest makes a collector of every file of a folder, but imports only the files that it runs.
    """
    if isinstance(collector, pytest.Module) and graph.reaches_tensorflow(collector.path):
        _divide_cpu()


@functools.cache
def _divide_cpu() -> None:
    logical_devices.divide()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    selected: list[pytest.Item] = []
    deselected: list[pytest.Item] = []
    for item in items:
        (selected if _is_selected(config, item) else deselected).append(item)
    if deselected:
        items[:] = selected
        config.hook.pytest_deselected(items=deselected)


def pytest_collection_finish() -> None:
    graph.keep()


def _is_selected(config: pytest.Config, item: pytest.Item) -> bool:
    tiers = selected_tiers(config)
    tier = item_tier(item)
    if tiers is None:
        if tier not in DEFAULT and not _is_named(config, item):
            return False
    elif tier not in tiers:
        return False
    part = config.getoption("part")
    if part is not None and _item_part(item) != part:
        return False
    if config.getoption("without_serial") and item.get_closest_marker("serial"):
        config.stash[SERIAL].append(item.nodeid)
        return False
    return True


def _is_named(config: pytest.Config, item: pytest.Item) -> bool:
    """Whether the command line names the test's file, or the test, and no mere folder."""
    files = {pathlib.Path(argument.partition("::")[0]) for argument in config.args}
    return item.path in {(config.invocation_params.dir / file).resolve() for file in files}


def pytest_report_header(config: pytest.Config) -> list[str]:
    tiers = selected_tiers(config) or DEFAULT
    return [f"tiers: {', '.join(tier.title for tier in sorted(tiers))}"]
