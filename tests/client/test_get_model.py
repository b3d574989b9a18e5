"""`tfparallel get model`: what is brought, of a local run and of a job, until Ctrl-C."""

import asyncio
import json
import os
import pathlib
import signal
import sys

import pytest
from aiohttp import web

from testing import invocation, result_files, waiting
from testing.operator import scripted_server
from tfparallel import errors
from tfparallel.results import files, folder
from tfparallel_operator.api import names


def _listed(*paths: str) -> list[files.ResultFile]:
    return [files.ResultFile(path, 1) for path in paths]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (files.ResultSelection.MODEL, {"model.keras"}),
        (files.ResultSelection.TENSORBOARD, {"logs/tensorboard/train/events.out.tfevents.1"}),
        (
            files.ResultSelection.ALL,
            {*result_files.RESULTS}
            - {"checkpoints/step-9-a/index.json", "checkpoints/owner.json"}
            - {"checkpoints/heartbeat.json"}
            - {"checkpoints/step-11-a/part-00000.bin", "checkpoints/step-12-a/damaged-index.json"}
            - {"logs/steps.jsonl"},
        ),
    ],
)
def test_parts_of_the_results(part: files.ResultSelection, expected: set[str]) -> None:
    chosen = files.select(_listed(*result_files.RESULTS), part)
    assert {file.path for file in chosen} == expected


def test_a_script_chooses_the_names_of_its_files() -> None:
    events = "tb/train/events.out.tfevents.1.host"
    listed = _listed("run/best.keras", "run/logs/train.jsonl", events)
    expected = {
        files.ResultSelection.MODEL: ["run/best.keras"],
        files.ResultSelection.ALL: ["run/best.keras", "run/logs/train.jsonl", events],
        files.ResultSelection.TENSORBOARD: [events],
    }
    for part, paths in expected.items():
        assert [file.path for file in files.select(listed, part, is_script=True)] == paths


def _local_run(root: pathlib.Path) -> pathlib.Path:
    run = root / "runs/digits/20260101-000000"
    for name, content in result_files.RESULTS.items():
        path = run / "claims/digits/digits" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (run / "status.json").write_text("{}")
    return run


def _call(*arguments: str, cwd: pathlib.Path) -> invocation.Ended:
    return invocation.run("get", "model", *arguments, folder=cwd)


@pytest.mark.usefixtures("processes")
def test_the_newest_local_run(tmp_path: pathlib.Path) -> None:
    _local_run(tmp_path)
    done = _call("runs/digits", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "digits-model/model.keras\n", "")
    assert (tmp_path / "digits-model/model.keras").read_bytes() == result_files.MODEL
    done = _call("runs/digits", "--all", "--to", "out", cwd=tmp_path)
    assert done.stdout == "out: 5 files, 0.0 MiB\n"


@pytest.mark.parametrize(
    ("name", "is_run"),
    [
        ("runs/digits", True),
        ("run", True),
        (".", True),
        ("fetched", False),
        ("./fetched", True),
        ("digits", False),
    ],
)
def test_a_folder_of_a_jobs_name_that_holds_an_earlier_download_is_no_run(
    name: str, *, is_run: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _local_run(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/status.json").write_text("{}")
    (tmp_path / "fetched").mkdir()
    (tmp_path / "fetched/model.keras").write_bytes(result_files.MODEL)
    assert folder.is_run(name) == is_run


_LISTING = """<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult><Name>models</Name><Prefix>runs/digits/</Prefix><KeyCount>1</KeyCount>
<IsTruncated>false</IsTruncated><Contents><Key>runs/digits/model.keras</Key>
<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"1"</ETag><Size>1000</Size>
</Contents></ListBucketResult>"""


_JOB = {
    "apiVersion": names.API_VERSION,
    "kind": names.KIND,
    "metadata": {
        "name": "digits",
        "namespace": "team",
        "uid": "1",
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    },
    "spec": {
        "trainer": {"epochs": 1, "checkpoint": {"uri": "s3://models/runs"}},
        "tfReplicaSpecs": {"Worker": {}},
    },
    "status": {"state": "Succeeded"},
}


async def _answer_half(request: web.Request) -> web.StreamResponse:
    """Answer as an API server with a job, and as a store that stops in the midst of its model."""
    if request.path.startswith("/apis/"):
        return web.json_response(_JOB)
    if not request.path.endswith("model.keras"):
        return web.Response(text=_LISTING, content_type="application/xml")
    headers = {
        "Content-Length": "1000",
        "Content-Range": "bytes 0-999/1000",
        "ETag": '"1"',
        "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
    }
    response = web.StreamResponse(status=206, headers=headers)
    await response.prepare(request)
    await response.write(bytes(500))
    await asyncio.Event().wait()
    return response


@pytest.mark.usefixtures("processes")
async def test_ctrl_c_leaves_no_half_file(tmp_path: pathlib.Path) -> None:
    async with scripted_server.serving() as server:
        server.script = [_answer_half]
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server.url}}],
            "users": [{"name": "u", "user": {}}],
        }
        (tmp_path / "config").write_text(json.dumps(config))
        variables = {
            "KUBECONFIG": str(tmp_path / "config"),
            "AWS_ENDPOINT_URL": server.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "eu-west-3",
        }
        target = tmp_path / "out"
        command = ("-m", "tfparallel", "get", "model", "digits", "--to", str(target))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            env={**os.environ, **variables},
            stderr=asyncio.subprocess.PIPE,
        )
        await waiting.until_async(
            lambda: asyncio.to_thread(lambda: list(target.glob("*/model.keras"))),
            "the begin of the download",
            when=lambda paths: paths or process.returncode is not None,
        )
        assert process.returncode is None, await process.communicate()
        process.send_signal(signal.SIGINT)
        _, shown = await process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert "Traceback" not in shown.decode()
    assert not list(target.rglob("*"))


def test_a_folder_without_results(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.Failure, match="no results of the trainer"):
        folder.find(tmp_path)
