"""The runner, the guard of the unit tier and the reports, on a small project of their own."""

import ctypes
import datetime
import json
import multiprocessing
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

from testing import paths, waiting
from testing.cluster import binaries
from testing.pytest_plugin import times
from testing.pytest_plugin.tiers import Part, Tier
from testing.run import __main__ as command
from testing.run import long_page, parts, preconditions, processes, verdict

CLONE_NEWNET = 0x40000000
"""Of unshare(2): a network namespace of its own."""

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
def test_tests_do_not_take_themselves_for_a_part_of_the_make_that_started_them(
    project: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A make that such a test starts would print more, and run its jobs elsewhere."""
    monkeypatch.setenv("MAKEFLAGS", "w")
    write(project, "test_make.py", "import os\ndef test_it(): assert 'MAKEFLAGS' not in os.environ")
    assert parts.run("make", [], project).code == parts.OK


@pytest.mark.usefixtures("processes")
def test_a_file_that_cannot_be_imported_breaks_the_run(project: pathlib.Path) -> None:
    write(project, "test_unit.py", "import nothing_of_this_name")
    runner = command.Runner(project)
    runner.run(frozenset({Tier.UNIT}))
    assert runner.verdict.code == verdict.BROKEN
    assert runner.verdict.lines()[-1] == "0 passed, 1 failed"


@pytest.mark.usefixtures("processes")
def test_cpu_seconds_of_children_count_while_they_live_and_when_they_have_ended(
    project: pathlib.Path,
) -> None:
    write(
        project,
        "test_busy.py",
        """
import subprocess, sys
BUSY = "import time\\nwhile time.process_time() < 0.5: pass\\nprint(1, flush=True)\\ninput()"

def start():
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.stdout.readline()
    return process

def test_ends(processes):
    start().communicate(b"x")

LEFT = []

def test_lives(processes):
    LEFT.append(start())

def test_other(processes):
    LEFT.pop().communicate(b"x")
""",
    )
    tests = parts.run("busy", [], project).report.tests
    spent = {name.partition("::")[2]: cost.cpu_seconds for name, cost in tests.items()}
    assert spent["test_ends"] >= 0.4
    assert spent["test_lives"] >= 0.4
    assert spent["test_other"] < 0.4


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


LEAVES_AN_ORPHAN = """
import pathlib, subprocess, time

def test_leaves_it(processes):
    command = ["sh", "-c", "sleep 0.1 >/dev/null & echo $!"]
    left = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    deadline = time.monotonic() + 30
    while pathlib.Path("/proc", left).exists():
        assert time.monotonic() < deadline, "its remains stay"
        time.sleep(0.01)
"""


def as_adopting(project: pathlib.Path) -> int:
    processes.adopt_orphans()
    return parts.run("orphans", [], project).code


@pytest.mark.usefixtures("processes")
def test_a_process_that_lost_its_parent_leaves_no_remains_while_tests_run(
    project: pathlib.Path,
) -> None:
    """In a cluster with containers, they would keep its first process from ending."""
    write(project, "test_process.py", LEAVES_AN_ORPHAN)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(as_adopting, (project,)) == parts.OK


@pytest.mark.parametrize("part", [None, *Part])
def test_the_essential_part_says_in_one_line_what_it_leaves(part: Part | None) -> None:
    lines = command.summary(part, 5.5, verdict.Verdict(passed=3))
    sentences = [line for line in lines if line.startswith("Left to `make test-all`: ")]
    assert len(sentences) == (1 if part is Part.ESSENTIAL else 0)
    assert all(
        f"tier {tier}" in line for line in sentences for tier in ("process", "cluster", "e2e")
    )


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


def test_flaky_tests_are_kept_in_a_list(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "tests/flaky.txt"
    for test in ("a.py::x", "b.py::y"):
        verdict.record_flaky(file, [test], "abc")
    assert file.read_text(encoding="utf-8") == "abc a.py::x\nabc b.py::y\n"


def without_rights() -> str | None:
    os.setuid(65534)
    return preconditions.lacks_container_rights()


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_without_root_there_are_no_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(without_rights) == "containers need root or a Docker engine."


def with_every_port_taken() -> str | None:
    """Say what is wrong in a network of its own, which has one port."""
    if ctypes.CDLL(None).unshare(CLONE_NEWNET):
        return "not allowed"
    pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("40000 40000")
    with socket.create_server(("", 0)):
        return preconditions.lacks_loopback()


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a network")
def test_ports_that_are_taken_are_named() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        reason = pool.apply(with_every_port_taken)
    if reason == "not allowed":
        pytest.skip("This machine allows no networks.")
    assert reason == (
        "no port of 127.0.0.1 is to be had ([Errno 98] Address already in use (while attempting to "
        "bind on address ('127.0.0.1', 0)))."
    )


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_disk_that_is_nearly_full_is_named(tmp_path: pathlib.Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("This machine allows no mounts.")
    try:
        reason = preconditions.lacks_space(Tier.UNIT, [tmp_path / "not there yet"])
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert reason == f"{tmp_path}/not there yet has 0.0 GiB free of the 0.2 that it needs."


@pytest.mark.usefixtures("processes")
def test_without_go_and_a_registry_the_cluster_tier_says_so(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFPARALLEL_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    reason = preconditions.lacks_cluster_programs()
    assert reason == f"Please install Go 1.{binaries.GO_MINOR}: the cluster is built with it."


@pytest.mark.usefixtures("processes")
def test_with_go_and_without_a_registry_the_reason_is_the_registrys(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("TFPARALLEL_CACHE", "GOMODCACHE", "GOCACHE"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.setenv("GOPROXY", "http://127.0.0.1:9")
    reason = preconditions.lacks_object_store()
    assert reason is not None
    assert reason.startswith("building versitygw failed: … ")
    assert reason.endswith("127.0.0.1:9: connect: connection refused")


def test_a_report_is_read_as_it_was_written(tmp_path: pathlib.Path) -> None:
    report = times.Report({"a.py::x": times.Cost("unit", 1.0, 2.0, "failed")}, ["s"], ["e.py"])
    report.write(tmp_path / "report.json")
    assert times.read(tmp_path / "report.json") == report
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["serial"] == ["s"]
    assert "unit     a.py\n" in times.render([report], 20)


def test_the_page_of_the_long_tier_has_the_last_result(tmp_path: pathlib.Path) -> None:
    result = long_page.Result(datetime.date(2026, 11, 23), "abc1234", 40, 1, 31.6)
    long_page.write(result, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert text.endswith("| 2026-11-23 | abc1234 | 40 | 1 | 32 |\n")
    assert long_page.FILE.read_text(encoding="utf-8").startswith(long_page.PAGE)
