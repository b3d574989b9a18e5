"""The runner, the guard of the unit tier and the reports, on a small project of their own."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from testing import paths, waiting
from testing.pytest_plugin import times
from testing.pytest_plugin.tiers import Tier
from testing.run import __main__ as command
from testing.run import parts, preconditions, verdict

CONFTEST = """
pytest_plugins = [f"testing.pytest_plugin.{name}" for name in ("tiers", "guard", "times", "scopes")]
"""
INI = "[pytest]\nmarkers =\n    serial\n    long\n"
OFFENDERS = """
import contextlib, multiprocessing, os, socket, subprocess, threading
import pytest

def test_runs_a_program():
    subprocess.run(["true"])

def test_hides_what_it_does():
    with contextlib.suppress(BaseException):
        subprocess.run(["true"])

def test_forks():
    if os.fork() == 0:
        os._exit(0)

def test_spawns():
    multiprocessing.get_context("spawn").Process(target=print).start()

def test_listens():
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))

def test_imports_tensorflow():
    import tensorflow

def test_listens_on_loopback():
    with socket.create_server(("127.0.0.1", 0)):
        pass

def test_may_run_a_program(processes):
    subprocess.run(["true"], check=True)
"""


@pytest.fixture
def project(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, [paths.ROOT, *sys.path])))
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text(INI, encoding="utf-8")
    return tmp_path


def write(project: pathlib.Path, name: str, text: str) -> None:
    (project / name).write_text(text, encoding="utf-8")


@pytest.mark.usefixtures("processes")
def test_a_unit_test_that_needs_more_fails_and_names_the_fixture(
    project: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(project, "test_unit.py", OFFENDERS)
    report = parts.run("guard", [], project).report
    names = {name.partition("::")[2] for name in report.failed}
    hidden = {"test_runs_a_program", "test_hides_what_it_does", "test_forks", "test_spawns"}
    assert names == {*hidden, "test_listens", "test_imports_tensorflow"}
    assert "test_forks is of the unit tier, but forks" in (shown := capfd.readouterr().out)
    assert "ask for the fixture `runs`" in shown
    assert report.tests["test_unit.py::test_may_run_a_program"].tier == "process"


@pytest.mark.usefixtures("processes")
def test_a_failure_that_passes_alone_is_flaky_and_serial_tests_come_last(
    project: pathlib.Path,
) -> None:
    write(
        project,
        "test_unit.py",
        """
import pathlib, pytest
LOG = pathlib.Path(__file__).with_name("log")

def test_fails_first():
    seen, _ = LOG.exists(), LOG.touch()
    assert seen

def test_passes():
    pass

@pytest.mark.serial
def test_by_the_clock():
    assert LOG.exists()
""",
    )
    runner = command.Runner(project)
    runner.run(frozenset({Tier.UNIT}))
    assert runner.verdict.flaky == ["test_unit.py::test_fails_first"]
    assert runner.verdict.lines()[-1] == "3 passed, 0 failed"
    assert runner.verdict.code == verdict.PASSED
    assert [*times.read(project / "build/tests/serial.json").tests] == [
        "test_unit.py::test_by_the_clock"
    ]


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("failing", [1, 4])
def test_failures_of_the_unit_tier_end_the_run(project: pathlib.Path, failing: int) -> None:
    tests = "\n".join(f"def test_{number}(): assert False" for number in range(failing))
    write(project, "test_unit.py", tests)
    write(project, "test_process.py", "def test_it(processes): pass")
    runner = command.Runner(project)
    runner.run(frozenset({Tier.UNIT, Tier.PROCESS}))
    assert runner.verdict.lines()[-1] == f"0 passed, {failing} failed"
    assert runner.verdict.code == verdict.FAILED
    again = [*(project / "build/tests").glob("again-*.json")]
    assert len(again) == (1 if failing == 1 else 0)


@pytest.mark.usefixtures("processes")
def test_a_file_that_cannot_be_imported_breaks_the_run(project: pathlib.Path) -> None:
    write(project, "test_unit.py", "import nothing_of_this_name")
    runner = command.Runner(project)
    runner.run(frozenset({Tier.UNIT}))
    assert runner.verdict.code == verdict.BROKEN
    assert runner.verdict.lines()[-1] == "0 passed, 1 failed"


INTERRUPTED_RUN = """
import pathlib, sys
from testing.pytest_plugin.tiers import Tier
from testing.run import __main__ as command
from testing.run import preconditions

preconditions.lacks_object_store = lambda: None

def run():
    command.Runner(pathlib.Path(sys.argv[1])).run(frozenset({Tier.PROCESS}))
    return 0

sys.exit(command.run_until_interrupted(run))
"""
HANGS = """
import pathlib, subprocess, sys, time

def test_hangs(processes):
    sleeper = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"]
    child = subprocess.Popen(sleeper, start_new_session=True, stdout=subprocess.PIPE)
    child.stdout.readline()
    partial = pathlib.Path(__file__).with_name("partial")
    partial.write_text(str(child.pid))
    partial.rename(partial.with_name("pid"))
    time.sleep(600)
"""


def by_make(project: pathlib.Path) -> list[str]:
    """The command of `make test`, whose Python runs the tests of the project."""
    script, python = project / "run.py", project / "python"
    script.write_text(INTERRUPTED_RUN, encoding="utf-8")
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {script} {project}\n", encoding="utf-8")
    python.chmod(0o755)
    return ["make", "--assume-old=.venv/.dev", f"BIN={project}", "test"]


@pytest.mark.usefixtures("processes")
def test_ctrl_c_ends_in_one_line_and_leaves_nothing_running(project: pathlib.Path) -> None:
    write(project, "test_process.py", HANGS)
    run = subprocess.Popen(
        by_make(project),
        cwd=paths.ROOT,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    file = project / "pid"
    waiting.until(file.exists, "the test has started its process")
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does
    output, _ = run.communicate(timeout=60)
    assert run.returncode == -signal.SIGINT, output  # of make, after the code INTERRUPTED
    assert output.splitlines()[-1].startswith("Interrupted: "), output
    assert "Traceback" not in output, output
    assert "KeyboardInterrupt" not in output, output
    assert not pathlib.Path("/proc", file.read_text(encoding="utf-8")).exists()


@pytest.mark.parametrize(
    ("failed", "flaky", "retried"),
    [(["a"], [], 1), (["a", "b", "c"], [], 3), (["a", "b"], ["c", "d"], 0), ([*"abcd"], [], 0)],
)
def test_at_most_three_tests_run_once_more(
    failed: list[str], flaky: list[str], retried: int
) -> None:
    assert len(verdict.Verdict(failed=failed, flaky=flaky).to_retry()) == retried


def test_a_tier_that_cannot_run_has_a_distinct_exit_code() -> None:
    obstacle = preconditions.Obstacle(Tier.E2E, "containers need root or a Docker engine.")
    result = verdict.Verdict(passed=3, obstacles=[obstacle])
    assert result.code == verdict.TIERS_MISSING
    assert result.lines() == [
        "The tier e2e cannot run: containers need root or a Docker engine.",
        "0 skipped",
        "3 passed, 0 failed",
    ]
    result.failed.append("a")
    assert result.code == verdict.FAILED
