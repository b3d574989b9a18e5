"""Writes what each test cost into build/tests: a report in JSON, and JUnit XML.

CPU seconds are those of the pytest process, of its children that have ended, and of its living
descendants. Containers are no descendants: their seconds are not counted.
"""

import collections
import dataclasses
import json
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from testing.pytest_plugin import tiers

FOLDER = "build/tests"
TICKS = os.sysconf("SC_CLK_TCK")
CPU = "cpu_seconds"
TIER = "tier"
FAILED = "failed"
_BY_SEVERITY = ("passed", "skipped", FAILED)


@dataclasses.dataclass(slots=True)
class Cost:
    """What a test, or several, took of a worker and of the CPU; how it ended."""

    tier: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    outcome: str = "passed"


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What one run of pytest did."""

    tests: dict[str, Cost]
    serial: list[str]
    """Tests that were left for a run of their own."""

    errors: list[str]
    """Files that could not be collected."""

    @property
    def failed(self) -> list[str]:
        """The tests that failed."""
        return [name for name, cost in self.tests.items() if cost.outcome == FAILED]

    def count(self, outcome: str) -> int:
        """Return how many tests ended so."""
        return sum(cost.outcome == outcome for cost in self.tests.values())

    def write(self, file: pathlib.Path) -> None:
        """Write it as JSON."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(dataclasses.asdict(self), indent=1), encoding="utf-8")


def read(file: pathlib.Path) -> Report:
    """Read a report that a run has written."""
    content = json.loads(file.read_text(encoding="utf-8"))
    tests = {name: Cost(**cost) for name, cost in content["tests"].items()}
    return Report(tests, content["serial"], content["errors"])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("tfparallel").addoption(
        "--report", default="pytest", help="name of the files that the run writes into build/tests"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if _is_worker(config) or config.option.collectonly:
        return
    name = config.getoption("report")
    folder = config.rootpath / FOLDER
    if config.option.xmlpath is None:
        config.option.xmlpath = str(folder / f"{name}.xml")
    config.pluginmanager.register(
        TimesRecorder(config, folder / f"{name}.json"), "tfparallel-recorder"
    )


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def cpu_seconds() -> float:
    """CPU seconds of this process and of all it has started, as far as they can be seen."""
    return sum(os.times()[:4]) + sum(map(_seconds_of, descendants(os.getpid())))


def descendants(pid: int) -> Iterator[int]:
    """The processes below a process, itself not among them."""
    for task in _listed(pathlib.Path(f"/proc/{pid}/task")):
        for child in _text(task / "children").split():
            yield int(child)
            yield from descendants(int(child))


def _seconds_of(pid: int) -> float:
    """Its own seconds and those of its children that have ended."""
    fields = _text(pathlib.Path(f"/proc/{pid}/stat")).rpartition(") ")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def _listed(folder: pathlib.Path) -> list[pathlib.Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # it has ended meanwhile
        return []


def _text(file: pathlib.Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""


_STARTED = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[_STARTED] = cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    finally:
        spent = max(0.0, cpu_seconds() - item.stash[_STARTED])
        item.user_properties += [(TIER, tiers.item_tier(item).title), (CPU, round(spent, 3))]


@pytest.hookimpl
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that distributes the tests what this worker left for later."""
    if _is_worker(session.config):
        output: dict[str, Any] = session.config.workeroutput  # type: ignore[attr-defined]
        output["serial"] = session.config.stash[tiers.SERIAL]


class TimesRecorder:
    """Collects the reports of all workers."""

    def __init__(self, config: pytest.Config, file: pathlib.Path) -> None:
        self._config = config
        self._file = file
        self._file.unlink(missing_ok=True)
        self._costs: dict[str, Cost] = collections.defaultdict(Cost)
        self._errors: set[str] = set()
        self._serial: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase of a test."""
        cost = self._costs[report.nodeid]
        cost.seconds += report.duration
        cost.outcome = max(cost.outcome, report.outcome, key=_BY_SEVERITY.index)
        properties = dict(report.user_properties)
        if report.when == "teardown" and TIER in properties:
            cost.tier, cost.cpu_seconds = str(properties[TIER]), float(str(properties[CPU]))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be collected."""
        if report.failed:
            self._errors.add(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker of pytest-xdist left for later."""
        self._serial |= set(getattr(node, "workeroutput", {}).get("serial", ()))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Write the report and the tables."""
        serial = sorted({*self._serial, *self._config.stash[tiers.SERIAL]})
        report = Report(dict(self._costs), serial, sorted(self._errors))
        report.write(self._file)
        self._file.with_suffix(".txt").write_text(render([report]), encoding="utf-8")


def by_file(reports: Iterable[Report]) -> dict[tuple[str, str], Cost]:
    """The costs of each file's tests of each tier."""
    return _summed(reports, lambda name, cost: (name.partition("::")[0], cost.tier))


def by_tier(reports: Iterable[Report]) -> dict[tuple[str, str], Cost]:
    """The costs of each tier."""
    return _summed(reports, lambda _, cost: ("all", cost.tier))


def _summed(reports: Iterable[Report], key: Any) -> dict[tuple[str, str], Cost]:
    sums: dict[tuple[str, str], Cost] = collections.defaultdict(Cost)
    for report in reports:
        for name, cost in report.tests.items():
            total = sums[key(name, cost)]
            total.seconds += cost.seconds
            total.cpu_seconds += cost.cpu_seconds
    return sums


def render(reports: list[Report], rows: int | None = None) -> str:
    """Tables of the dearest files and of the tiers, in worker-seconds and CPU seconds."""
    files = by_file(reports)
    dearest = sorted(files.items(), key=lambda entry: -entry[1].seconds)[:rows]
    totals = sorted(by_tier(reports).items(), key=lambda entry: entry[0][1])
    lines = [f"{'worker s':>9} {'CPU s':>9}  {'tier':8} file"]
    for (file, tier), cost in [*dearest, *totals]:
        lines.append(f"{cost.seconds:9.1f} {cost.cpu_seconds:9.1f}  {tier:8} {file}")
    return "\n".join(lines) + "\n"
