"""Downloads of results: whole or not at all, from places whose files come and go."""

import asyncio
import dataclasses
import hashlib
import os
import pathlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from testing import buckets, result_files
from tfparallel import errors, source_packing
from tfparallel.backends.cluster import pod_exec
from tfparallel.results import bucket, claim, download, files, folder
from tfparallel_operator.api_server import errors as api_errors
from tfparallel_trainer.storage import address


@dataclasses.dataclass
class BreakingPlace:
    """A place whose connection breaks after a few bytes of each read."""

    content: bytes = result_files.MODEL
    digest: str = hashlib.sha256(result_files.MODEL).hexdigest()
    bytes_of_read: int = 30

    async def list_files(self) -> Sequence[files.ResultFile]:
        return [files.ResultFile("model.keras", len(self.content))]

    async def read(self, file: files.ResultFile, offset: int) -> AsyncIterator[bytes]:
        yield self.content[offset : offset + self.bytes_of_read]
        raise api_errors.Unavailable("broken")

    async def compute_digest(self, file: files.ResultFile) -> str | None:
        return self.digest


async def test_a_download_goes_on_where_the_connection_broke(tmp_path: pathlib.Path) -> None:
    storage, sizes = BreakingPlace(), list[int]()
    await download.fetch(storage, await storage.list_files(), tmp_path, sizes.append, print)
    assert (tmp_path / "model.keras").read_bytes() == result_files.MODEL
    assert sizes == [30, 30, 30, 10]
    assert [path.name for path in tmp_path.iterdir()] == ["model.keras"]


@pytest.mark.parametrize(
    ("storage", "sentence"),
    [
        (BreakingPlace(digest="0" * 64), "digest differs"),
        (BreakingPlace(bytes_of_read=0), "does not arrive: 0 of 100 bytes came"),
    ],
    ids=["digest", "broken"],
)
async def test_what_is_not_whole_changes_nothing(
    storage: BreakingPlace, sentence: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "model.keras").write_bytes(b"earlier")
    with pytest.raises(errors.Failure, match=sentence):
        await download.fetch(storage, await storage.list_files(), tmp_path, lambda _: None, print)
    assert (tmp_path / "model.keras").read_bytes() == b"earlier"
    assert [path.name for path in tmp_path.iterdir()] == ["model.keras"]


@pytest.mark.parametrize("path", ["../model.keras", "/model.keras", "a/../../model.keras"])
async def test_a_name_outside_of_the_folder_is_refused(path: str, tmp_path: pathlib.Path) -> None:
    listed = [files.ResultFile(path, 1)]
    with pytest.raises(errors.Failure, match="outside"):
        await download.fetch(BreakingPlace(), listed, tmp_path, lambda _: None, print)


def _write_moving(root: pathlib.Path) -> pathlib.Path:
    """Write results in which links lead to nothing and away; return their folder."""
    results = root / "claim" / "job"
    (results / "logs/tensorboard").mkdir(parents=True)
    (root / "secret").write_text("of this machine")
    (root / "claim/shared").write_text("of another job")
    (results / "model.keras").write_bytes(result_files.MODEL)
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


async def _bring_moving(storage: files.Store, target: pathlib.Path) -> list[str]:
    """Fetch what a place lists, a file of which goes meanwhile; return what is said."""
    sentences: list[str] = []
    chosen = files.select(await storage.list_files(), files.ResultSelection.ALL)
    gone = [files.ResultFile(f"logs/tensorboard/{name}", 10) for name in _GONE]
    fetched = await download.fetch(
        storage, [*gone, *chosen], target, lambda _: None, sentences.append
    )
    assert [file.path for file in fetched] == ["logs/tensorboard/latest", "model.keras"]
    for name in ("model.keras", "logs/tensorboard/latest"):
        assert (target / name).read_bytes() == result_files.MODEL
    assert len([path for path in target.rglob("*") if path.name != source_packing.IGNORE_FILE]) == 4
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
    storage = folder.FolderStore(_write_moving(tmp_path))
    _assert_said(await _bring_moving(storage, tmp_path / "to"))


async def test_what_a_disk_does_not_give_is_left_out(tmp_path: pathlib.Path) -> None:
    storage = folder.FolderStore(tmp_path / "results")
    storage.path.mkdir()
    (storage.path / "summary.json").symlink_to("/proc/self/mem")  # EIO at its begin
    (storage.path / "model.keras").write_bytes(result_files.MODEL)
    chosen = [
        files.ResultFile("summary.json", 10),
        files.ResultFile("model.keras", len(result_files.MODEL)),
    ]
    sentences: list[str] = []
    await download.fetch(storage, chosen, tmp_path / "to", lambda _: None, sentences.append)
    expected = "summary.json is left out: it cannot be read (Input/output error)"
    assert sentences == [expected]
    assert {path.name for path in (tmp_path / "to").iterdir()} == {
        "model.keras",
        source_packing.IGNORE_FILE,
    }


async def test_no_job_takes_a_download_along(tmp_path: pathlib.Path) -> None:
    """By default it goes to the working directory, which may be the folder of the source."""
    results, source = tmp_path / "results", tmp_path / "digits"
    for file in (results / "model.keras", source / "model.py", source / "base.keras"):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(result_files.MODEL)
    storage, target = folder.FolderStore(results), source / "digits-model"
    for _ in range(2):
        await download.fetch(storage, await storage.list_files(), target, lambda _: None, print)
    assert (target / "model.keras").read_bytes() == result_files.MODEL
    assert list(source_packing.pack(source, None).files) == ["base.keras", "model.py"]


async def test_a_folder_that_exists_is_left_as_it_is(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.keras").write_bytes(result_files.MODEL)
    storage = folder.FolderStore(tmp_path)
    (tmp_path / "mine").mkdir()
    await download.fetch(
        storage, await storage.list_files(), tmp_path / "mine", lambda _: None, print
    )
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["model.keras"]


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
    listed = asyncio.run(folder.FolderStore(tmp_path).list_files())
    assert [pathlib.Path(file.path).name for file in listed] == ["file"]


@pytest.fixture
def local_claim(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, processes: object
) -> Callable[[pathlib.Path], claim.ClaimStore]:
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
            pod_exec._check({"status": "Failure", "details": {"causes": [cause]}}, done.stderr)

    monkeypatch.setattr(pod_exec, "run", run)
    cluster: Any = None

    def open_place(root: pathlib.Path) -> claim.ClaimStore:
        claimed = tmp_path / "claim"
        monkeypatch.setattr(claim, "MOUNT", str(claimed if claimed.exists() else root))
        return claim.ClaimStore(cluster, "pod", str(root))

    return open_place


async def test_of_a_file_that_grows_comes_what_was_listed(
    tmp_path: pathlib.Path, local_claim: Callable[[pathlib.Path], claim.ClaimStore]
) -> None:
    (tmp_path / "train.jsonl").write_bytes(result_files.MODEL)
    listed = [files.ResultFile("train.jsonl", 40)]
    places: list[files.Store] = [folder.FolderStore(tmp_path), local_claim(tmp_path)]
    for number, storage in enumerate(places):
        to = tmp_path / f"to-{number}"
        assert await download.fetch(storage, listed, to, lambda _: None, print) == listed
        assert (to / "train.jsonl").read_bytes() == result_files.MODEL[:40]


async def test_a_file_of_a_claim_that_may_not_be_read_or_named_is_left_out(
    tmp_path: pathlib.Path, local_claim: Callable[[pathlib.Path], claim.ClaimStore]
) -> None:
    (tmp_path / "denied").write_bytes(result_files.MODEL)
    (tmp_path / "model.keras").write_bytes(result_files.MODEL)
    (tmp_path / os.fsdecode(b"model.keras\xff")).write_bytes(b"of another name")
    storage = local_claim(tmp_path)
    sentences: list[str] = []
    listed = sorted(await storage.list_files(), key=lambda file: file.path)
    fetched = await download.fetch(
        storage, listed, tmp_path / "to", lambda _: None, sentences.append
    )
    assert [file.path for file in fetched] == ["model.keras"]
    assert (tmp_path / "to/model.keras").read_bytes() == result_files.MODEL
    assert [sentence.partition(" is left out: ")[2] for sentence in sentences] == [
        "it cannot be read (Permission denied)",
        "its name is no UTF-8",
    ]


async def test_files_of_a_claim_that_come_and_go_end_no_download(
    tmp_path: pathlib.Path, local_claim: Callable[[pathlib.Path], claim.ClaimStore]
) -> None:
    storage = local_claim(_write_moving(tmp_path))
    _assert_said(await _bring_moving(storage, tmp_path / "to"))


async def test_an_object_that_is_removed_meanwhile_ends_no_download(
    s3: buckets.Bucket, tmp_path: pathlib.Path
) -> None:
    for name, content in result_files.RESULTS.items():
        s3.put(f"runs/digits/{name}", content)
    storage = bucket.BucketStore(address.Address.parse(s3.uri).child("digits"))
    chosen = files.select(await storage.list_files(), files.ResultSelection.ALL)
    (s3.files / "runs/digits/summary.json").unlink()
    sentences: list[str] = []
    await download.fetch(storage, chosen, tmp_path, lambda _: None, sentences.append)
    assert sentences == ["summary.json is left out: it was removed meanwhile"]
    assert (tmp_path / "model.keras").read_bytes() == result_files.MODEL
