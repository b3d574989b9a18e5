"""Text of pods, of the API server and of who wrote the job: none of it reaches a terminal's ear."""

import asyncio
import pathlib
import re
from typing import Any

import pytest
from rich import table as rich_table
from rich import text as rich_text

from testing import invocation
from testing.operator import routes, scripted_server
from tfparallel.terminal import display, wrapping
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources

HOSTILE = "\x1b[31mRED\x1b[0m\x1b[2J\x1b]0;title\x07\x9b31m\u202e\x00end"
SHOWN = r"\x1b[31mRED\x1b[0m\x1b[2J\x1b]0;title\x07\x9b31m\u202e\x00end"

CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")


def _job() -> dict[str, Any]:
    job = routes.job("digits", state="Restarting")
    condition = {
        "type": "Restarting",
        "status": "True",
        "reason": "ReplicaLost",
        "message": f"digits-worker-0 {HOSTILE}",
        "lastTransitionTime": "2026-01-01T10:03:00Z",
    }
    job["status"]["conditions"] = [condition, {**condition, "type": HOSTILE}]
    job["status"]["strategy"] = HOSTILE
    last = {"replica": HOSTILE, "code": 7, "reason": HOSTILE, "time": "2026-01-01T10:03:00Z"}
    job["status"]["replicas"] = {"Worker": {"desired": 2, "reason": HOSTILE, "lastExit": last}}
    job["metadata"]["annotations"] = {"note": HOSTILE}
    return job


def _pod() -> dict[str, Any]:
    state = {"waiting": {"reason": HOSTILE, "message": HOSTILE}}
    labels = {names.LABEL_ROLE: "worker", names.LABEL_INDEX: "0", names.LABEL_ATTEMPT: "1"}
    return {
        "metadata": {
            "name": "digits-worker-0",
            "resourceVersion": "4",
            "labels": labels,
            "creationTimestamp": "2026-01-01T10:00:00Z",
            "ownerReferences": [{"uid": "uid-of-digits"}],
        },
        "spec": {"nodeName": HOSTILE},
        "status": {
            "phase": "Pending",
            "reason": HOSTILE,
            "message": HOSTILE,
            "containerStatuses": [{"name": names.CONTAINER, "state": state}],
        },
    }


def _event() -> dict[str, Any]:
    return {
        "metadata": {"name": "one", "resourceVersion": "4", "uid": "uid-of-one"},
        "eventTime": "2026-01-01T10:00:00.000000Z",
        "type": "Warning",
        "reason": HOSTILE,
        "note": HOSTILE,
        "regarding": {"kind": "Pod", "name": "digits-worker-0", "namespace": "team"},
        "reportingController": HOSTILE,
    }


async def _call(folder: pathlib.Path, *arguments: str) -> invocation.Result:
    documents = {
        resources.JOBS.path("team"): scripted_server.listing(5, _job()),
        resources.JOBS.path("team", "digits"): _job(),
        resources.PODS.path("team"): scripted_server.listing(5, _pod()),
        resources.EVENTS.path("team"): scripted_server.listing(5, _event()),
    }
    async with scripted_server.serving() as server:
        server.script = [routes.answers(documents)]
        command = (*arguments, "--kubeconfig", str(routes.kubeconfig(folder, server.url)))
        return await asyncio.to_thread(invocation.invoke, command)


@pytest.mark.parametrize(
    "command",
    [
        ("get", "jobs"),
        ("get", "jobs", "-o", "wide"),
        ("get", "job", "digits", "-o", "json"),
        ("get", "job", "digits", "-o", "yaml"),
        ("status", "digits"),
        ("why", "digits"),
        ("why", "digits", "-o", "json"),
        ("events", "digits"),
        ("logs", "digits"),
    ],
    ids=" ".join,
)
async def test_a_verb_shows_control_characters_of_others(
    command: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    result = await _call(tmp_path, *command)
    assert CONTROLS.findall(result.output) == []
    shown = (r"\x1b[31mRED", r"\u001b[31mRED", r"\e[31mRED")  # as people, JSON and YAML have it
    assert any(text in result.output for text in shown), result.output


async def test_an_error_of_the_api_server_is_shown_so(tmp_path: pathlib.Path) -> None:
    async with scripted_server.serving() as server:
        status = {"kind": "Status", "reason": "Forbidden", "code": 403, "message": HOSTILE}
        server.script = [scripted_server.document(status, status=403)]
        where = ("--kubeconfig", str(routes.kubeconfig(tmp_path, server.url)))
        for verbose in ((), ("-v",)):
            command = (*verbose, "status", "digits", *where)
            result = await asyncio.to_thread(invocation.invoke, command)
            assert result.exit_code == 1
            assert SHOWN in result.output
            assert CONTROLS.findall(result.output) == []


def test_on_a_terminal_colors_of_a_replica_stay_and_all_else_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "400"}.items():
        monkeypatch.setenv(name, value)
    out, _ = display.consoles()
    assert out.is_terminal
    link = "\x1b]8;;http://x\x07\x1b[2J\x1b\\link\x1b]8;;\x1b\\"
    line = f"\x1b[1m10/10\x1b[0m {link} \x9b2J \x00 \u202e"
    display.print_line(out, rich_text.Text.from_ansi(line))
    table = rich_table.Table("Head\x1b[2J", title=HOSTILE, min_width=200)
    table.add_row(rich_text.Text(HOSTILE, "red"))
    out.print(table)
    with display.progress_bar(out) as bar:
        bar.add_task("training", total=10, details=HOSTILE)
        bar.refresh()
    printed = capsys.readouterr().out
    assert "\x1b[1m10/10" in printed
    for part in (r"\x9b2J", r"\x00", r"\u202e", r"Head\x1b[2J", r"\x1b]0;title"):
        assert part in printed
    # Only rich's own colors remain, and the moves of the cursor around its bar.
    plain = re.sub(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[2K|\x1b\[1A|\r", "", printed)
    assert CONTROLS.findall(plain) == []


def test_a_sentence_keeps_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    wrapping.echo(f"one\n\ttwo {HOSTILE}")
    assert capsys.readouterr().out == f"one\n\ttwo {SHOWN}\n"


@pytest.mark.parametrize(
    ("line", "plain"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\ and text", "link and text"),
        ("\x1b]0;title\x07", r"\x1b]0;title"),
        ("\x1b]0;title\x1b\\text \x1b]2;other", r"text \x1b]2;other"),
        ("\x1b\x1b]]", r"\x1b]]"),
        ("\x1b]" * 100_000, r"\x1b]" * 100_000),  # took time like the square of the length
    ],
    ids=["color", "link", "no end", "one end", "one in another", "many"],
)
def test_a_command_that_does_not_end_is_shown_and_costs_no_more(line: str, plain: str) -> None:
    assert display.parse_colors(line).plain == plain
