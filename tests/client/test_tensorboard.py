"""`tfparallel tensorboard`: event files of a run, and of a job while it writes them."""

import asyncio
import base64
import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from testing import buckets, invocation, pages, paths, waiting
from testing.operator import routes, scripted_server
from tfparallel import errors, models
from tfparallel.backends.cluster import access, cluster_backend
from tfparallel.backends.cluster import objects as cluster_objects
from tfparallel.results import event_files, files, stores
from tfparallel.terminal import tensorboard_process
from tfparallel_operator.api_server import credentials, resources
from tfparallel_operator.api_server import errors as api_errors
from tfparallel_trainer.contract import outputs

EVENTS = base64.b64decode(
    "SAAAAAAAAAD+kkidCbSyIQY0wdpBGg1icmFpbi5FdmVudDoyUi4KLHRlbnNvcmJvYXJkLnN1bW1hcnkud3JpdGVyLmV2"
    "ZW50X2ZpbGVfd3JpdGVy+T/EEhoAAAAAAAAAEpvYLQkAAAAAAADwPxABKg0KCwoEbG9zcxUAAAA/J/ldsQ=="
)
"""A file with the loss 0.5 of step 1."""

FILE = "events.out.tfevents.1.chief.1.0"
TRAIN = f"{outputs.TENSORBOARD}/train/{FILE}"

PAGE = paths.PAGES / "how-to/tensorboard.md"
COMMANDS = [c for block in pages.blocks(PAGE, "console") for c in pages.commands(block)]
SHOWN = {line for command in COMMANDS for line in command.shown}


@dataclasses.dataclass
class GrowingPlace:
    """A place with one event file, to which its writer appends."""

    content: bytes = b"first"
    reads: list[int] = dataclasses.field(default_factory=list)
    breaks: bool = False
    path: str = TRAIN

    async def list_files(self) -> Sequence[files.ResultFile]:
        return [files.ResultFile(self.path, len(self.content)), files.ResultFile("model.keras", 9)]

    async def read(self, file: files.ResultFile, offset: int) -> AsyncIterator[bytes]:
        self.reads.append(offset)
        if self.breaks:
            yield self.content[offset : offset + 1]
            raise api_errors.Unavailable("broken")
        yield self.content[offset : file.size]

    async def compute_digest(self, file: files.ResultFile) -> str | None:
        raise AssertionError("a file that grows has no digest")


async def test_a_copy_reads_what_a_file_has_gained(tmp_path: pathlib.Path) -> None:
    storage = GrowingPlace()
    for content in (b"first", b"first", b"first second", b"other"):
        storage.content = content
        await event_files.update(storage, tmp_path)
        assert (tmp_path / TRAIN).read_bytes() == content
    assert storage.reads == [0, 5, 0]
    assert [path.name for path in tmp_path.rglob("*.keras")] == []


async def test_a_copy_goes_on_where_the_connection_broke(tmp_path: pathlib.Path) -> None:
    storage = GrowingPlace(breaks=True)
    with pytest.raises(api_errors.Unavailable):
        await event_files.update(storage, tmp_path)
    storage.breaks = False
    await event_files.update(storage, tmp_path)
    assert (tmp_path / TRAIN).read_bytes() == b"first"
    assert storage.reads == [0, 1]


async def test_no_file_lands_outside_of_the_folder(tmp_path: pathlib.Path) -> None:
    storage = GrowingPlace(path=f"{outputs.TENSORBOARD}/../../../x")
    with pytest.raises(errors.Failure, match="outside"):
        await event_files.update(storage, tmp_path / "to")
    assert not (tmp_path / "x").exists()


async def test_copies_go_on_after_a_failure_and_end_with_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_files, "PAUSE_SECONDS", 0)
    begun: list[int] = []
    job = cluster_objects.parse_job(routes.job("digits"))

    async def copies() -> AsyncGenerator[models.Job, None]:
        begun.append(len(begun))
        yield job
        if len(begun) < 3:
            raise errors.Failure("the pod has ended")
        if len(begun) == 3:
            raise api_errors.Unavailable("broken")

    messages: list[str] = []
    await event_files.keep_copying(copies, copies(), messages.append)
    assert begun == [0, 1, 2, 3]
    assert [sentence.partition(".")[0] for sentence in messages] == [
        "the pod has ended",
        "the pod has ended",
        "broken",
    ]


async def test_copies_that_are_stopped_close_their_place() -> None:
    """So that no pod that reads a claim stays."""
    job = cluster_objects.parse_job(routes.job("digits"))
    waits, closed = asyncio.Event(), list[str]()

    async def copies() -> AsyncGenerator[models.Job, None]:
        try:
            yield job
            waits.set()
            await asyncio.Event().wait()
        finally:
            closed.append("place")

    copying = asyncio.create_task(event_files.keep_copying(copies, copies(), print))
    await waits.wait()
    copying.cancel()
    await asyncio.gather(copying, return_exceptions=True)
    assert closed == ["place"]


async def test_copies_end_when_the_job_is_deleted() -> None:
    async def copies() -> AsyncGenerator[models.Job, None]:
        raise errors.JobNotFound("there is no job 'digits'")
        yield

    messages: list[str] = []
    await event_files.keep_copying(copies, copies(), messages.append)
    assert messages == ["there is no job 'digits': TensorBoard shows what came until now"]


def write_run(folder: pathlib.Path, *names: str) -> pathlib.Path:
    """Write the folder of a local run with event files."""
    run = folder / "runs/digits/20260101-000000"
    run.mkdir(parents=True)
    (run / "status.json").write_text("{}")
    for path in names:
        (run / path).parent.mkdir(parents=True, exist_ok=True)
        (run / path).write_bytes(EVENTS)
    return run


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (
            [f"claims/r/digits/{outputs.TENSORBOARD}/{kind}/{FILE}" for kind in ("train", "eval")],
            f"claims/r/digits/{outputs.TENSORBOARD}",
        ),
        ([f"claims/mine/board/{FILE}"], "."),
        ([f"claims/r/{job}/{outputs.TENSORBOARD}/train/{FILE}" for job in ("a", "b")], "."),
    ],
    ids=["trainer", "script", "two"],
)
def test_the_folder_of_a_run(written: list[str], expected: str, tmp_path: pathlib.Path) -> None:
    run = write_run(tmp_path, *written)
    assert event_files.find(run.parent) == event_files.find(run) == run / expected


def test_a_run_without_event_files(tmp_path: pathlib.Path) -> None:
    run = write_run(tmp_path)
    result = invocation.invoke(["tensorboard", str(run)])
    assert result.exit_code == 1
    assert f"error: {run}: no event files of TensorBoard are below it. " in result.stderr
    assert "a script writes them with output_dir" in result.stderr


def test_without_the_program_the_sentence_says_how_to_get_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    result = invocation.invoke(["tensorboard", "digits"])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: TensorBoard is not installed: run pip install")


_TAKEN = """#!/bin/sh
echo 'TensorBoard could not bind to port 6006, it was already in use' >&2
exit 1
"""
_BOARD = """#!/bin/sh
echo "$@" > arguments
echo "note with an http://address" >&2
echo "TensorBoard 2.21.0 at http://127.0.0.1:6007/ (Press CTRL+C to quit)" >&2
exec sleep 600
"""


def _write_program(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    program = folder / "tensorboard"
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.chdir(folder)


@pytest.mark.usefixtures("processes")
async def test_a_program_that_does_not_start_is_quoted(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_program(tmp_path, monkeypatch, _TAKEN)
    with pytest.raises(errors.Failure, match=r"already in use\. Run the command again, with anot"):
        async with tensorboard_process.started(tmp_path, 0):
            pass


async def test_a_taken_port_is_named_before_the_program_starts(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_program(tmp_path, monkeypatch, _BOARD)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(errors.Failure) as refusal:
            async with tensorboard_process.started(tmp_path, port):
                pass
    assert str(refusal.value) == (
        f"--port {port}: TensorBoard cannot listen on this port of the machine: Address already in"
        " use. Choose another, or leave out --port for one that is free"
    )
    assert not (tmp_path / "arguments").exists()


@pytest.mark.usefixtures("processes")
async def test_the_program_listens_on_loopback_and_is_ended(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_program(tmp_path, monkeypatch, _BOARD)
    async with tensorboard_process.started(tmp_path, 6007) as board:
        assert board.address == "http://127.0.0.1:6007/"
        arguments = (tmp_path / "arguments").read_text().split()
    assert board.process.returncode == -signal.SIGTERM
    assert arguments[arguments.index("--host") + 1] == "127.0.0.1"
    assert arguments[arguments.index("--port") + 1] == "6007"


def _without_tensorflow(folder: pathlib.Path) -> dict[str, str]:
    """Return variables for a TensorBoard that does without TensorFlow, and so starts quicker."""
    hidden = folder / "hidden"
    hidden.mkdir()
    (hidden / "tensorflow.py").write_text("raise ImportError('hidden')\n")
    earlier = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(hidden), earlier)))}


@contextlib.contextmanager
def showing(folder: pathlib.Path, *arguments: str) -> Iterator[str]:
    """Run the verb with a real TensorBoard, yield its address, and end it with Ctrl-C."""
    command = (*invocation.PROGRAM, "tensorboard", *arguments, "--port", "0")
    with subprocess.Popen(
        command,
        cwd=folder,
        env=_without_tensorflow(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        try:
            assert program.stdout is not None
            line = program.stdout.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+/", line)
            assert address is not None, program.communicate()[1]
            assert line.rstrip().replace(address[0], "http://127.0.0.1:6006/") in SHOWN
            yield address[0]
            program.send_signal(signal.SIGINT)
            _, complaints = program.communicate(timeout=60)
            assert (program.returncode, complaints) == (0, "")
        finally:
            program.kill()


def losses(board: str) -> list[list[float]]:
    """Return the points of a real TensorBoard: time, step and loss."""
    query = "data/plugin/scalars/scalars?tag=loss&run=train"
    try:
        with urllib.request.urlopen(f"{board}{query}") as answer:  # noqa: S310 (loopback)
            points: list[list[float]] = json.load(answer)
            return points
    except urllib.error.HTTPError:  # it has not read the file yet
        return []


@pytest.mark.usefixtures("processes")
def test_a_real_tensorboard_shows_a_local_run_and_ends_with_ctrl_c(tmp_path: pathlib.Path) -> None:
    write_run(tmp_path, f"claims/r/digits/{outputs.TENSORBOARD}/train/{FILE}")
    with showing(tmp_path, "runs/digits") as board:
        points = waiting.until(lambda: losses(board), "the loss")
    assert points == [[1.0, 1, 0.5]]
    with pytest.raises((ConnectionError, http.client.HTTPException, OSError)):
        losses(board)


def written_job(bucket: buckets.Bucket, version: int, state: str) -> dict[str, Any]:
    """Return a job that keeps its results in a bucket."""
    body = routes.job("digits", version, state=state)
    body["spec"]["trainer"] = {"epochs": 1, "checkpoint": {"uri": bucket.uri}}
    return body


async def test_the_files_of_a_job_are_copied_until_it_has_ended(
    s3: buckets.Bucket, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_files, "PAUSE_SECONDS", 0)
    documents: dict[str, Any] = {}
    path = resources.JOBS.path("team", "digits")
    async with scripted_server.serving() as server:
        server.script = [routes.answers(documents)]
        config = str(routes.kubeconfig(tmp_path, server.url))
        context = access.Context("kind-dev", "team", credentials.find(config))
        async with cluster_backend.ClusterBackend(context) as cluster:
            documents[path] = written_job(s3, 1, "Running")
            sizes = []
            copies = event_files.copies(
                cluster, "digits", tmp_path / "to", stores.StoreOptions(), print
            )
            async for job in copies:
                copy = tmp_path / "to" / TRAIN
                sizes.append((job.state, copy.stat().st_size if copy.exists() else 0))
                s3.put(f"runs/team/digits/{TRAIN}", EVENTS * len(sizes))
                if len(sizes) == 2:
                    documents[path] = written_job(s3, 2, "Succeeded")
    size = len(EVENTS)
    assert sizes == [("Running", 0), ("Running", size), ("Succeeded", 2 * size)]


@pytest.mark.parametrize(
    ("state", "trainer", "sentence"),
    [
        ("Succeeded", {"checkpoint": {"uri": "BUCKET"}}, "'digits' has left no event files"),
        ("Running", {}, "kept nothing: it has no spec.trainer.checkpoint. Set checkpoint.claim"),
        ("Running", None, "keeps nothing: its containers mount no claim"),
        ("Pending", {}, "has written nothing yet: it is Pending"),
    ],
    ids=["none-written", "nothing-kept", "script", "pending"],
)
async def test_a_job_without_event_files(
    state: str,
    trainer: dict[str, Any] | None,
    sentence: str,
    s3: buckets.Bucket,
    tmp_path: pathlib.Path,
) -> None:
    body = routes.job("digits", state=state)
    if state == "Pending":
        del body["status"]["progress"]
    if trainer is not None:
        text = json.dumps({"epochs": 1, **trainer}).replace("BUCKET", s3.uri)
        body["spec"]["trainer"] = json.loads(text)
    async with scripted_server.serving() as server:
        server.script = [routes.answers({resources.JOBS.path("team", "digits"): body})]
        where = ("--kubeconfig", str(routes.kubeconfig(tmp_path, server.url)))
        result = await asyncio.to_thread(invocation.invoke, ("tensorboard", "digits", *where))
    assert result.exit_code == 1
    assert sentence in result.stderr


async def test_a_real_tensorboard_shows_a_job(s3: buckets.Bucket, tmp_path: pathlib.Path) -> None:
    s3.put(f"runs/team/digits/{TRAIN}", EVENTS)
    body = written_job(s3, 1, "Running")
    async with scripted_server.serving() as server:
        server.script = [routes.answers({resources.JOBS.path("team", "digits"): body})]
        where = ("--kubeconfig", str(routes.kubeconfig(tmp_path, server.url)), "--to", "kept")

        def look() -> list[list[float]]:
            with showing(tmp_path, "digits", *where) as board:
                return waiting.until(lambda: losses(board), "the loss")

        assert await asyncio.to_thread(look) == [[1.0, 1, 0.5]]
    assert (tmp_path / "kept" / TRAIN).read_bytes() == EVENTS
