"""`tfparallel get model`: what is brought, and that no file is half written."""

import asyncio
import dataclasses
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from aiohttp import web

from testing import buckets, waiting
from testing.operator import harness, objects, scripted_server
from testing.operator import local_jobs as jobs
from tfparallel import errors, models
from tfparallel.cluster import access, backend, execute
from tfparallel.cluster import objects as cluster_objects
from tfparallel.results import bucket, claim, download, files, folder, places, script
from tfparallel_operator.api import load, names, types
from tfparallel_operator.api_server import credentials, resources
from tfparallel_operator.api_server import errors as api_errors
from tfparallel_trainer.storage import address
from tfparallel_trainer.storage import bucket as storage_bucket

_MODEL = b"0123456789" * 10
_RESULTS = {
    "model.keras": _MODEL,
    "saved_model/saved_model.pb": b"pb",
    "summary.json": b"{}",
    "logs/tensorboard/train/events.out.tfevents.1": b"events",
    "logs/steps.jsonl": b"steps",
    "checkpoints/step-9-a/index.json": b"9",
    "checkpoints/step-10-a/index.json": b"10",
    "checkpoints/step-11-a/part-00000.bin": b"11",
    "checkpoints/step-12-a/damaged-index.json": b"12",
    "checkpoints/owner.json": b"owner",
    "checkpoints/heartbeat.json": b"heartbeat",
}


@dataclasses.dataclass
class BreakingPlace:
    """A place whose connection breaks after a few bytes of each read."""

    content: bytes = _MODEL
    digest: str = hashlib.sha256(_MODEL).hexdigest()
    bytes_of_read: int = 30

    async def list_files(self) -> Sequence[files.File]:
        return [files.File("model.keras", len(self.content))]

    async def read(self, file: files.File, offset: int) -> AsyncIterator[bytes]:
        yield self.content[offset : offset + self.bytes_of_read]
        raise api_errors.Unavailable("broken")

    async def compute_digest(self, file: files.File) -> str | None:
        return self.digest


def _listed(*paths: str) -> list[files.File]:
    return [files.File(path, 1) for path in paths]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (files.Part.MODEL, {"model.keras"}),
        (files.Part.TENSORBOARD, {"logs/tensorboard/train/events.out.tfevents.1"}),
        (
            files.Part.ALL,
            {*_RESULTS}
            - {"checkpoints/step-9-a/index.json", "checkpoints/owner.json"}
            - {"checkpoints/heartbeat.json"}
            - {"checkpoints/step-11-a/part-00000.bin", "checkpoints/step-12-a/damaged-index.json"}
            - {"logs/steps.jsonl"},
        ),
    ],
)
def test_parts_of_the_results(part: files.Part, expected: set[str]) -> None:
    chosen = files.select(_listed(*_RESULTS), part)
    assert {file.path for file in chosen} == expected


def test_a_script_chooses_the_names_of_its_files() -> None:
    events = "tb/train/events.out.tfevents.1.host"
    listed = _listed("run/best.keras", "run/logs/train.jsonl", events)
    expected = {
        files.Part.MODEL: ["run/best.keras"],
        files.Part.ALL: ["run/best.keras", "run/logs/train.jsonl", events],
        files.Part.TENSORBOARD: [events],
    }
    for part, paths in expected.items():
        assert [file.path for file in files.select(listed, part, is_script=True)] == paths


def _script_job(*mounts: dict[str, Any]) -> types.TFParallelJob:
    """A job of a script with volumes `output`, of a template, and `data`, a claim."""
    volumes = [
        {"name": "output", "persistentVolumeClaim": {"claimName": "output"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "images"}},
        {"name": "scratch", "emptyDir": {}},
    ]
    template = jobs.template(["true"], volumeMounts=list(mounts), pod_spec={"volumes": volumes})
    claim_template = {
        "metadata": {"name": "output"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    roles = {"Worker": {"template": template}}
    return load.read_job(jobs.job(roles, name="fit", volumeClaimTemplates=[claim_template]))


_OUTPUT = {"name": "output", "mountPath": "/output"}
_DATA = {"name": "data", "mountPath": "/data"}


@pytest.mark.parametrize(
    ("mounts", "path", "expected"),
    [
        ([_OUTPUT], None, ("fit-output", ".")),
        ([_OUTPUT], "/output/runs/1/", ("fit-output", "runs/1")),
        ([_OUTPUT, {**_DATA, "readOnly": True}], None, ("fit-output", ".")),
        ([_OUTPUT, {**_DATA, "subPath": "mine"}], "/data/run", ("images", "mine/run")),
        ([_OUTPUT, {**_DATA, "mountPath": "/output/data"}], "/output/data/x", ("images", "x")),
    ],
)
def test_the_claim_of_a_script(
    mounts: list[dict[str, Any]], path: str | None, expected: tuple[str, str]
) -> None:
    results = script.find(_script_job(*mounts), path)
    assert (results.claim, str(results.path)) == expected


@pytest.mark.parametrize(
    ("mounts", "path", "sentence"),
    [
        ([{"name": "scratch", "mountPath": "/tmp/x"}], None, "mount no claim that they may write"),
        ([{**_OUTPUT, "readOnly": True}], None, "mount no claim that they may write"),
        ([_OUTPUT], "/outputs", "nothing in /outputs: its containers mount claim 'fit-output' at"),
        ([_OUTPUT, _DATA], None, "'images' at /data. Choose the folder of the results with --path"),
    ],
)
def test_a_script_that_keeps_nothing_or_in_several_claims(
    mounts: list[dict[str, Any]], path: str | None, sentence: str
) -> None:
    with pytest.raises(errors.Failure, match=sentence):
        script.find(_script_job(*mounts), path)


async def test_a_download_goes_on_where_the_connection_broke(tmp_path: pathlib.Path) -> None:
    place, sizes = BreakingPlace(), list[int]()
    await download.fetch(place, await place.list_files(), tmp_path, sizes.append, print)
    assert (tmp_path / "model.keras").read_bytes() == _MODEL
    assert sizes == [30, 30, 30, 10]
    assert [path.name for path in tmp_path.iterdir()] == ["model.keras"]


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        (BreakingPlace(digest="0" * 64), "digest differs"),
        (BreakingPlace(bytes_of_read=0), "does not arrive: 0 of 100 bytes came"),
    ],
    ids=["digest", "broken"],
)
async def test_what_is_not_whole_changes_nothing(
    place: BreakingPlace, sentence: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "model.keras").write_bytes(b"earlier")
    with pytest.raises(errors.Failure, match=sentence):
        await download.fetch(place, await place.list_files(), tmp_path, lambda _: None, print)
    assert (tmp_path / "model.keras").read_bytes() == b"earlier"
    assert [path.name for path in tmp_path.iterdir()] == ["model.keras"]


@pytest.mark.parametrize("path", ["../model.keras", "/model.keras", "a/../../model.keras"])
async def test_a_name_outside_of_the_folder_is_refused(path: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.Failure, match="outside"):
        await download.fetch(BreakingPlace(), _listed(path), tmp_path, lambda _: None, print)


def _write_moving(root: pathlib.Path) -> pathlib.Path:
    """Write results in which links lead to nothing and away; return their folder."""
    results = root / "claim" / "job"
    (results / "logs/tensorboard").mkdir(parents=True)
    (root / "secret").write_text("of this machine")
    (root / "claim/shared").write_text("of another job")
    (results / "model.keras").write_bytes(_MODEL)
    for name, target in {
        "latest": "model.keras",
        "dangling": "/nowhere/at/all",
        "circle": "circle",
        "outside": str(root / "secret"),
        "folder": str(root),
        "tunnel": "../../secret",
    }.items():
        (results / "logs/tensorboard" / name).symlink_to(
            f"../../{target}" if target in ("model.keras", "../../secret") else target
        )
    os.mkfifo(results / "logs/tensorboard/pipe")
    (results / "logs/tensorboard/replaced").mkdir()
    (results / "logs/tensorboard/.file").touch()
    return results


_LEFT_OUT = ("circle", "dangling", "folder", "outside", "pipe", "tunnel")
_GONE = ("removed", "replaced", ".file/below")


async def _bring_moving(place: files.Place, folder: pathlib.Path) -> list[str]:
    """Fetch what a place lists, a file of which goes meanwhile; return what is said."""
    sentences: list[str] = []
    chosen = files.select(await place.list_files(), files.Part.ALL)
    gone = [files.File(f"logs/tensorboard/{name}", 10) for name in _GONE]
    fetched = await download.fetch(
        place, [*gone, *chosen], folder, lambda _: None, sentences.append
    )
    assert [file.path for file in fetched] == ["logs/tensorboard/latest", "model.keras"]
    for name in ("model.keras", "logs/tensorboard/latest"):
        assert (folder / name).read_bytes() == _MODEL
    assert len(list(folder.rglob("*"))) == 4
    return sorted(sentences)


def _assert_said(sentences: list[str]) -> None:
    expected = sorted((*_LEFT_OUT, *_GONE))
    assert [sentence.split()[0] for sentence in sentences] == [
        f"logs/tensorboard/{name}" for name in expected
    ]
    by_name = {sentence.split()[0].partition("board/")[2]: sentence for sentence in sentences}
    assert all("was removed meanwhile" in by_name[name] for name in _GONE)
    assert all("leads out of" in by_name[name] for name in ("outside", "tunnel", "folder"))


async def test_files_of_a_folder_that_come_and_go_end_no_download(tmp_path: pathlib.Path) -> None:
    place = folder.FolderPlace(_write_moving(tmp_path))
    _assert_said(await _bring_moving(place, tmp_path / "to"))


async def test_what_a_disk_does_not_give_is_left_out(tmp_path: pathlib.Path) -> None:
    place = folder.FolderPlace(tmp_path / "results")
    place.path.mkdir()
    (place.path / "summary.json").symlink_to("/proc/self/mem")  # EIO at its begin
    (place.path / "model.keras").write_bytes(_MODEL)
    chosen = [files.File("summary.json", 10), files.File("model.keras", len(_MODEL))]
    sentences: list[str] = []
    await download.fetch(place, chosen, tmp_path / "to", lambda _: None, sentences.append)
    expected = "summary.json is left out: it cannot be read (Input/output error)"
    assert sentences == [expected]
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["model.keras"]


def test_folders_that_go_while_they_are_listed_are_passed_over(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    listing = os.scandir

    def scandir(path: Any) -> Any:
        """Remove the others when the first folder is listed."""
        for other in tmp_path.iterdir() if pathlib.Path(path).parent == tmp_path else ():
            if str(other) != str(path):
                (other / "file").unlink()
                other.rmdir()
        return listing(path)

    monkeypatch.setattr(os, "scandir", scandir)
    listed = asyncio.run(folder.FolderPlace(tmp_path).list_files())
    assert [pathlib.Path(file.path).name for file in listed] == ["file"]


async def test_of_a_file_that_grows_comes_what_was_listed(
    tmp_path: pathlib.Path, local_claim: Callable[[pathlib.Path], claim.ClaimPlace]
) -> None:
    (tmp_path / "train.jsonl").write_bytes(_MODEL)
    listed = [files.File("train.jsonl", 40)]
    places: list[files.Place] = [folder.FolderPlace(tmp_path), local_claim(tmp_path)]
    for number, place in enumerate(places):
        to = tmp_path / f"to-{number}"
        assert await download.fetch(place, listed, to, lambda _: None, print) == listed
        assert (to / "train.jsonl").read_bytes() == _MODEL[:40]


async def test_a_file_of_a_claim_that_may_not_be_read_or_named_is_left_out(
    tmp_path: pathlib.Path, local_claim: Callable[[pathlib.Path], claim.ClaimPlace]
) -> None:
    (tmp_path / "denied").write_bytes(_MODEL)
    (tmp_path / "model.keras").write_bytes(_MODEL)
    (tmp_path / os.fsdecode(b"model.keras\xff")).write_bytes(b"of another name")
    place = local_claim(tmp_path)
    sentences: list[str] = []
    listed = sorted(await place.list_files(), key=lambda file: file.path)
    fetched = await download.fetch(place, listed, tmp_path / "to", lambda _: None, sentences.append)
    assert [file.path for file in fetched] == ["model.keras"]
    assert (tmp_path / "to/model.keras").read_bytes() == _MODEL
    assert [sentence.partition(" is left out: ")[2] for sentence in sentences] == [
        "it cannot be read (Permission denied)",
        "its name is no UTF-8",
    ]


async def test_what_stands_for_a_folder_in_a_bucket_is_no_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = {"": 0, "/logs": 0, "/logs/train": 0, "/logs/train/a": 3, "/best": 4, "/best/a": 5}
    objects = [{"path": f"runs/digits{name}", "size": size} for name, size in sizes.items()]
    monkeypatch.setattr(storage_bucket.Bucket, "objects", lambda _: objects)
    place = bucket.BucketPlace(address.Address.parse("s3://b/runs/digits"))
    assert {file.path: file.problem for file in await place.list_files()} == {
        "logs/train/a": "",
        "best": "other files have its name as their folder",
        "best/a": "",
    }


@pytest.fixture
def local_claim(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, processes: object
) -> Callable[[pathlib.Path], claim.ClaimPlace]:
    """The pod's programs run here: what differs in a pod is the connection alone."""

    async def run(_: object, pod: str, command: Sequence[str]) -> AsyncIterator[bytes]:
        program, *arguments = command[2:]
        if arguments[0].endswith("denied"):  # tests may run as root, who may read all
            program = f"def open(*_): raise PermissionError\n{program}"
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments], capture_output=True, check=False
        )
        yield done.stdout
        if done.returncode:
            cause = {"reason": "ExitCode", "message": str(done.returncode)}
            execute._check({"status": "Failure", "details": {"causes": [cause]}}, done.stderr)

    monkeypatch.setattr(execute, "run", run)
    cluster: Any = None

    def open_place(root: pathlib.Path) -> claim.ClaimPlace:
        claimed = tmp_path / "claim"
        monkeypatch.setattr(claim, "MOUNT", str(claimed if claimed.exists() else root))
        return claim.ClaimPlace(cluster, "pod", str(root))

    return open_place


async def test_files_of_a_claim_that_come_and_go_end_no_download(
    tmp_path: pathlib.Path, local_claim: Callable[[pathlib.Path], claim.ClaimPlace]
) -> None:
    place = local_claim(_write_moving(tmp_path))
    _assert_said(await _bring_moving(place, tmp_path / "to"))


async def test_an_object_that_is_removed_meanwhile_ends_no_download(
    s3: buckets.Bucket, tmp_path: pathlib.Path
) -> None:
    for name, content in _RESULTS.items():
        s3.put(f"runs/digits/{name}", content)
    place = bucket.BucketPlace(address.Address.parse(s3.uri).child("digits"))
    chosen = files.select(await place.list_files(), files.Part.ALL)
    (s3.files / "runs/digits/summary.json").unlink()
    sentences: list[str] = []
    await download.fetch(place, chosen, tmp_path, lambda _: None, sentences.append)
    assert sentences == ["summary.json is left out: it was removed meanwhile"]
    assert (tmp_path / "model.keras").read_bytes() == _MODEL


def _local_run(root: pathlib.Path) -> pathlib.Path:
    run = root / "runs/digits/20260101-000000"
    for name, content in _RESULTS.items():
        path = run / "claims/digits/digits" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (run / "status.json").write_text("{}")
    return run


def _call(*arguments: str, cwd: pathlib.Path) -> "subprocess.CompletedProcess[str]":
    command = (sys.executable, "-m", "tfparallel", "get", "model", *arguments)
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("processes")
def test_the_newest_local_run(tmp_path: pathlib.Path) -> None:
    _local_run(tmp_path)
    done = _call("runs/digits", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "digits/model.keras\n", "")
    assert (tmp_path / "digits/model.keras").read_bytes() == _MODEL
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
    (tmp_path / "fetched/model.keras").write_bytes(_MODEL)
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
        process.send_signal(signal.SIGINT)
        _, shown = await process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert "Traceback" not in shown.decode()
    assert not list(target.rglob("*"))


def test_a_folder_without_results(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.Failure, match="no results of the trainer"):
        folder.find(tmp_path)


async def test_a_bucket(s3: buckets.Bucket, tmp_path: pathlib.Path) -> None:
    for name, content in _RESULTS.items():
        s3.put(f"runs/digits/{name}", content)
    place = bucket.BucketPlace(address.Address.parse(s3.uri).child("digits"))
    listed = await place.list_files()
    assert {file.path for file in listed} == {*_RESULTS}
    [model] = files.select(listed, files.Part.MODEL)
    assert b"".join([chunk async for chunk in place.read(model, 95)]) == _MODEL[95:]
    await download.fetch(
        place, files.select(listed, files.Part.ALL), tmp_path, lambda _: None, print
    )
    assert (tmp_path / "model.keras").read_bytes() == _MODEL


async def test_a_job_of_a_bucket_is_found_by_its_namespace_or_where_it_began(
    s3: buckets.Bucket,
) -> None:
    s3.put("runs/begun/checkpoints/owner.json", b'{"job": "a-uid", "attempt": 1}')
    s3.put("runs/taken/checkpoints/owner.json", b'{"namespace": "a"}')
    places_found = {
        (namespace, name): str((await bucket.find(s3.uri, namespace, name)).address)
        for namespace in "ab"
        for name in ("begun", "taken", "new")
    }
    assert places_found == {
        ("a", "begun"): f"{s3.uri}/begun",
        ("b", "begun"): f"{s3.uri}/begun",
        ("a", "taken"): f"{s3.uri}/taken",
        ("b", "taken"): f"{s3.uri}/b/taken",
        ("a", "new"): f"{s3.uri}/a/new",
        ("b", "new"): f"{s3.uri}/b/new",
    }


async def test_a_bucket_that_does_not_exist(s3: buckets.Bucket) -> None:
    place = bucket.BucketPlace(address.Address.parse("s3://no-such-bucket-at-all/x"))
    with pytest.raises(errors.Failure, match="does not exist"):
        await place.list_files()


def _cluster(place: harness.Place) -> backend.ClusterBackend:
    kubeconfig = str(place.cluster.kubeconfig)
    context = access.Context("test", place.namespace, credentials.find(kubeconfig))
    return backend.ClusterBackend(context)


async def _job(place: harness.Place, *, state: str = "Succeeded", **trainer: Any) -> models.Job:
    job = objects.job(workers=0)
    if trainer:
        job["spec"]["trainer"] = {"epochs": 1, **trainer}
    await place.create_job(job)
    path = resources.JOBS.path(place.namespace, "digits", "status")
    return cluster_objects.parse_job(await place.api.patch(path, {"status": {"state": state}}))


async def _claim(place: harness.Place, mode: str = "ReadWriteOnce") -> None:
    manifest = {
        "metadata": {"name": "results"},
        "spec": {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}},
    }
    await place.api.create(resources.CLAIMS, place.namespace, manifest)


_CHOICE = places.Choice()


async def _opened(place: harness.Place, job: models.Job) -> None:
    async with _cluster(place) as cluster, places.opened(cluster, job, _CHOICE, lambda _: None):
        pass


@pytest.mark.parametrize(
    ("trainer", "sentence"),
    [
        ({}, "mount no claim that they may write to"),
        ({"module": "model.py"}, "no spec.trainer.checkpoint"),
        ({"checkpoint": {"claim": "results"}}, "claim 'results' of job 'digits' does not exist"),
    ],
    ids=["script", "nothing kept", "claim"],
)
async def test_a_job_that_keeps_nothing(
    place: harness.Place, trainer: dict[str, Any], sentence: str
) -> None:
    job = await _job(place, **trainer)
    with pytest.raises(errors.Failure, match=sentence):
        await _opened(place, job)


@pytest.mark.parametrize(
    ("state", "sentence"),
    [("Running", "has not finished: it is Running"), ("Failed", "failed, so it has no model")],
)
async def test_a_job_without_a_model_yet(
    place: harness.Place, state: str, sentence: str, tmp_path: pathlib.Path
) -> None:
    await _job(place, state=state, checkpoint={"claim": "results"})
    where = ("-n", place.namespace, "--kubeconfig", str(place.cluster.kubeconfig))
    done = _call("digits", *where, cwd=tmp_path)
    assert done.returncode == 1
    assert sentence in done.stderr


async def test_the_pod_fits_restricted_namespaces_and_is_of_the_job(place: harness.Place) -> None:
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    await place.api.patch(f"/api/v1/namespaces/{place.namespace}", {"metadata": {"labels": level}})
    job = await _job(place, checkpoint={"claim": "results"})
    pod = claim.build_pod(job, claim.Reader("results", "digits", {}, "trainer:1"), None)
    created = await place.api.create(resources.PODS, place.namespace, pod)
    assert created["metadata"]["ownerReferences"][0]["uid"] == job.uid
    assert created["spec"]["activeDeadlineSeconds"]
    [container] = created["spec"]["containers"]
    assert {mount["readOnly"] for mount in container["volumeMounts"]} == {True}


async def test_the_pod_goes_to_the_node_that_uses_the_claim(
    place_with_nodes: harness.Place,
) -> None:
    place = place_with_nodes
    await _claim(place)
    job = await _job(place, checkpoint={"claim": "results"})
    user = claim.build_pod(job, claim.Reader("results", "digits", {}, "user:1"), None)
    user["spec"]["nodeName"] = "elsewhere"
    await place.api.create(resources.PODS, place.namespace, user)
    reader = claim.Reader("results", "digits", {}, "trainer:1", unschedulable_seconds=0)
    async with _cluster(place) as cluster:
        with pytest.raises(errors.Failure, match="no node takes the pod that reads claim"):
            async with claim.opened(cluster, job, reader, lambda _: None):
                pass
    left = (await place.api.list(resources.PODS, place.namespace, claim.LABEL_READER)).items
    assert [pod["spec"].get("nodeName") for pod in left] in ([], ["elsewhere"])
    pod = claim.build_pod(job, reader, "elsewhere")
    assert "'elsewhere'" in str(pod["spec"]["affinity"]["nodeAffinity"])


async def test_a_claim_of_one_pod_that_is_in_use(place: harness.Place) -> None:
    await _claim(place, "ReadWriteOncePod")
    job = await _job(place, checkpoint={"claim": "results"})
    user = claim.build_pod(job, claim.Reader("results", "digits", {}, "user:1"), None)
    await place.api.create(resources.PODS, place.namespace, user)
    with pytest.raises(errors.Failure, match="is ReadWriteOncePod, and pod digits-reader"):
        await _opened(place, job)
