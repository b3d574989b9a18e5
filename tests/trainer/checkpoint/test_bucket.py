"""Checkpoints in a bucket of a real server: the same guarantees as in a folder."""

import contextlib
import datetime
import http.server
import pathlib
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import obstore
import pytest

from testing import buckets
from testing.trainer import checkpoints
from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import entries, files, owner, shard, store
from tfparallel_trainer.storage import address, bucket, connection, directory, fetch, prefix


def opened(
    s3: buckets.Bucket, attempt: int | None = 1, keep: int = 2, job: str = "a"
) -> store.Store:
    return store.Store(s3.checkpoints, keep, job, attempt, lambda _: None)


def names(s3: buckets.Bucket) -> list[str]:
    return [path.name for path in entries.checkpoints(s3.checkpoints)]


def test_the_newest_checkpoints_are_kept_and_listed(s3: buckets.Bucket) -> None:
    saved = opened(s3)
    assert saved.restore(checkpoints.state(0)) is None
    for step in (5, 25, 31):
        saved.save(checkpoints.state(step), checkpoints.at(step))
    assert [name[:15] for name in names(s3)] == ["step-0000000025", "step-0000000031"]
    variables = checkpoints.variables(0)
    assert saved.restore(shard.undivided(variables)) == checkpoints.at(31)
    for key, expected in checkpoints.variables(31).items():
        np.testing.assert_array_equal(variables[key].value.numpy(), expected.value.numpy())


@pytest.mark.parametrize("name", ["part-00000.bin", "part-00000.json", "index.json"])
@pytest.mark.parametrize("damage", ["changed", "truncated", "removed"])
def test_a_damaged_checkpoint_is_passed_over(s3: buckets.Bucket, name: str, damage: str) -> None:
    sentences: list[str] = []
    saved = store.Store(s3.checkpoints, 3, "a", 1, sentences.append)
    saved.save(checkpoints.state(1), checkpoints.at(1))
    saved.save(checkpoints.state(2), checkpoints.at(2))
    damaged = s3.checkpoints.child(names(s3)[-1])
    content = damaged.read(name)
    if damage == "removed":
        (s3.results / "checkpoints" / damaged.name / name).unlink()
    elif damage == "truncated":
        damaged.write(name, content[:-3])
    else:
        damaged.write(name, bytes([content[0] ^ 0xFF]) + content[1:])
    assert saved.restore(checkpoints.state(0)) == checkpoints.at(1)
    if (name, damage) != ("index.json", "removed"):  # then it is no checkpoint at all
        assert len(sentences) == 1
        assert "step-0000000002" in sentences[0]
    saved.save(checkpoints.state(2), checkpoints.at(2))  # the same step again replaces it
    assert saved.restore(checkpoints.state(0)) == checkpoints.at(2)
    assert len(names(s3)) == 2


def test_parts_without_an_index_are_no_checkpoint_and_are_removed(s3: buckets.Bucket) -> None:
    root = s3.checkpoints
    draft = root.draft(entries.name(5), "000001-0123456789abcdef-1")
    files.write_part(draft, 0, checkpoints.state(5))
    saved = opened(s3)
    assert saved.restore(checkpoints.state(0)) is None
    saved.save(checkpoints.state(6), checkpoints.at(6))
    assert not draft.objects()
    assert root.drafts() == []


def test_of_two_that_saved_one_step_the_whole_one_is_taken(s3: buckets.Bucket) -> None:
    saved = opened(s3)
    for step in (10, 20):
        saved.save(checkpoints.state(step), checkpoints.at(step))
    first = s3.results / "checkpoints" / names(s3)[-1]
    second = shutil.copytree(first, first.with_name(first.name.replace("-000001-", "-000002-")))
    (second / "part-00000.bin").write_bytes(b"damaged")
    assert opened(s3, None).restore(checkpoints.state(0)) == checkpoints.at(20)
    assert (second / "damaged-index.json").exists()
    assert not (second / "index.json").exists()
    assert (first / "index.json").exists()


def test_what_is_saved_below_a_damaged_checkpoint_stays(s3: buckets.Bucket) -> None:
    saved = opened(s3, keep=1)
    saved.save(checkpoints.state(1000), checkpoints.at(1000))
    damaged = s3.checkpoints.child(names(s3)[-1])
    content = damaged.read("part-00000.bin")
    damaged.write("part-00000.bin", content[:-3])
    for number, step in enumerate((100, 200), 2):
        saved = opened(s3, number, keep=1)
        saved.restore(checkpoints.state(0))
        saved.save(checkpoints.state(step), checkpoints.at(step))
        assert [name[:15] for name in names(s3)] == [entries.name(step)]
    (hidden,) = s3.checkpoints.quarantined()
    assert hidden == damaged
    assert hidden.read("part-00000.bin") == content[:-3]
    assert opened(s3, 4).restore(checkpoints.state(0)) == checkpoints.at(200)


def test_a_kept_checkpoint_that_is_damaged_later_does_not_count(s3: buckets.Bucket) -> None:
    saved = opened(s3)
    for step in (10, 20):
        saved.save(checkpoints.state(step), checkpoints.at(step))
    damaged = s3.checkpoints.child(names(s3)[-1])
    content = damaged.read("part-00000.bin")
    damaged.write("part-00000.bin", bytes([content[0] ^ 1]) + content[1:])
    saved.save(checkpoints.state(30), checkpoints.at(30))
    assert [name[:15] for name in names(s3)] == [entries.name(10), entries.name(30)]


def test_what_a_person_keeps_next_to_checkpoints_stays(s3: buckets.Bucket) -> None:
    for key in ("step-0000009999-my-backup/index.json", "notes/todo.txt", "step-copies/a.bin"):
        s3.checkpoints.write(key, b"mine")
    saved = opened(s3, keep=1)
    for step in (1, 2, 3):
        saved.save(checkpoints.state(step), checkpoints.at(step))
    kept = {meta["path"].split("/checkpoints/")[1] for meta in s3.checkpoints.objects()}
    assert {"step-0000009999-my-backup/index.json", "notes/todo.txt", "step-copies/a.bin"} < kept
    assert [name[:15] for name in names(s3)] == [entries.name(3)]


def test_an_older_attempt_writes_nothing_more(s3: buckets.Bucket) -> None:
    old = opened(s3, 1)
    new = opened(s3, 2)
    with pytest.raises(errors.PreemptedError, match=r"This is attempt 1 .* attempt 2 .* has taken"):
        old.save(checkpoints.state(1), checkpoints.at(1))
    assert names(s3) == []
    with pytest.raises(errors.PreemptedError):
        opened(s3, 1)
    new.save(checkpoints.state(2), checkpoints.at(2))
    assert opened(s3, None).attempt == 3


def test_an_older_attempt_that_was_about_to_publish_publishes_nothing(
    s3: buckets.Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = opened(s3, 1)
    complete = files.complete

    def late(*arguments: object) -> bytes:
        opened(s3, 2)
        index: bytes = complete(*arguments)  # type: ignore[arg-type]
        return index

    monkeypatch.setattr(files, "complete", late)
    with pytest.raises(errors.PreemptedError):
        old.save(checkpoints.state(1), checkpoints.at(1))
    assert names(s3) == []


def of_namespace(s3: buckets.Bucket, namespace: str, uid: str) -> store.Store:
    """Open the checkpoints of the job `test` of a namespace, as its trainer does."""
    prefix.of_job.cache_clear()  # as in a new process
    prefix_address = prefix.of_job(s3.uri, namespace, "test")
    folder = bucket.Bucket(prefix_address).child("checkpoints")
    return store.Store(folder, 2, uid, 1, lambda _: None, namespace=namespace)


def test_jobs_of_one_name_in_two_namespaces_have_prefixes_of_their_own(
    s3: buckets.Bucket,
) -> None:
    first, second = of_namespace(s3, "a", "uid-1"), of_namespace(s3, "b", "uid-2")
    first.save(checkpoints.state(10), checkpoints.at(10))
    assert second.restore(checkpoints.state(0)) is None
    second.save(checkpoints.state(7), checkpoints.at(7))
    first.save(checkpoints.state(11), checkpoints.at(11))
    for namespace, step in (("a", 11), ("b", 7)):  # deleted and applied again
        again = of_namespace(s3, namespace, "uid-3")
        assert again.restore(checkpoints.state(0)) == checkpoints.at(step)


def test_a_job_of_an_earlier_version_keeps_its_prefix_and_no_other_namespace_gets_it(
    s3: buckets.Bucket,
) -> None:
    before = opened(s3, job="uid-1")
    before.save(checkpoints.state(10), checkpoints.at(10))
    first = of_namespace(s3, "a", "uid-1")
    assert first.restore(checkpoints.state(0)) == checkpoints.at(10)
    second = of_namespace(s3, "b", "uid-2")
    assert second.restore(checkpoints.state(0)) is None
    first.save(checkpoints.state(11), checkpoints.at(11))
    assert of_namespace(s3, "a", "uid-3").restore(checkpoints.state(0)) == checkpoints.at(11)


def test_credentials_for_the_namespace_alone_suffice(
    s3: buckets.Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put("runs/test/checkpoints/owner.json", b"{}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", buckets.STRANGER)
    for cache in (prefix.of_job, connection.connect):
        cache.cache_clear()
    assert str(prefix.of_job(s3.uri, "a", "test")) == f"{s3.uri}/a/test"
    connection.connect.cache_clear()


def test_a_prefix_of_another_namespace_is_refused_with_its_name(s3: buckets.Bucket) -> None:
    store.Store(s3.checkpoints, 2, "uid-1", 3, lambda _: None, namespace="a")
    with pytest.raises(
        errors.BadConfigurationError,
        match=r"belongs to a job of namespace 'a' \(attempt 3 of job uid-1\), and .* of your",
    ):
        store.Store(s3.checkpoints, 2, "uid-2", 1, lambda _: None, namespace="b")


def test_two_that_take_a_prefix_at_the_same_time_do_not_both_get_it(s3: buckets.Bucket) -> None:
    root = s3.directory
    for other in (b"first", b"second"):  # where the mark is missing, and where it is there
        before = root.snapshot(owner.FILE)
        assert root.replace(owner.FILE, root.snapshot(owner.FILE), other)
        assert not root.replace(owner.FILE, before, b"late")
        assert root.read(owner.FILE) == other


def test_taking_tries_again_when_another_comes_between(
    s3: buckets.Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, snapshot = s3.directory, bucket.Bucket.snapshot
    calls: list[str] = []

    def beaten(self: bucket.Bucket, name: str) -> directory.Snapshot:
        before = snapshot(self, name)
        calls.append(name)
        if len(calls) == 1:
            owner.take(root, "a", 4)
        return before

    monkeypatch.setattr(bucket.Bucket, "snapshot", beaten)
    assert owner.take(root, "a", None).attempt == 5


def test_a_checkpoint_is_removed_index_first(
    s3: buckets.Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = opened(s3)
    saved.save(checkpoints.state(1), checkpoints.at(1))
    root = s3.checkpoints
    (entry,) = root.entries()
    assert entry.version() is not None
    delete, deleted = obstore.delete, []

    def killed(source: Any, keys: Any) -> None:
        deleted.append(keys)
        delete(source, keys)
        raise OSError("killed")

    monkeypatch.setattr(obstore, "delete", killed)
    root.remove(entry)
    assert deleted == [f"runs/test/checkpoints/{entry.name}/index.json"]
    assert (root.entries(), entry.version()) == ([], None)
    assert root.drafts() == [entry]


def test_a_large_object_goes_up_in_parts_and_comes_back_the_same(s3: buckets.Bucket) -> None:
    content = np.random.default_rng(1).bytes(20 << 20)
    with s3.directory.writer("large") as writer:
        for start in range(0, len(content), 3 << 20):
            writer.write(content[start : start + (3 << 20)])
    for start, length in (((15 << 20) - 5, 2 << 20), (len(content) - 3, 10), (0, 10)):
        assert s3.directory.read_range("large", start, length) == content[start:][:length]


def test_an_object_whose_writer_fails_does_not_appear(s3: buckets.Bucket) -> None:
    with pytest.raises(ZeroDivisionError), s3.directory.writer("half") as writer:
        writer.write(b"x")
        raise ZeroDivisionError
    assert not s3.directory.has("half")


FEW: connection.Retries = {
    "max_retries": 3,
    "retry_timeout": datetime.timedelta(seconds=30),
    "backoff": {
        "init_backoff": datetime.timedelta(milliseconds=1),
        "max_backoff": datetime.timedelta(milliseconds=5),
    },
}


class Busy(http.server.BaseHTTPRequestHandler):
    """Refuses the first requests as a store does that is asked too often."""

    busy = 0
    requests = 0
    status = 503

    def do_GET(self) -> None:
        kind = type(self)
        kind.requests += 1
        status = kind.status if kind.requests <= kind.busy else 200
        self.send_response(status)
        self.send_header("Content-Length", "4")
        self.send_header("Last-Modified", "Mon, 23 Nov 2026 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(b"good" if status == 200 else b"slow")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Busy]]:
    class Server(Busy):
        pass

    with serving(Server) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
        monkeypatch.setattr(connection, "RETRIES", FEW)
        connection.connect.cache_clear()
        yield Server
    connection.connect.cache_clear()


@contextlib.contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """Answer requests on loopback in a thread; gives the address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_store_that_is_busy_is_asked_again(busy: type[Busy], status: int) -> None:
    busy.busy, busy.status = 2, status
    assert bucket.Bucket(address.Address("s3", "b")).read("object") == b"good"
    assert busy.requests == 3


def test_a_store_that_stays_busy_is_a_fault_of_storage(
    busy: type[Busy], tmp_path: pathlib.Path
) -> None:
    busy.busy = 1000
    with pytest.raises(OSError, match="503"):
        bucket.Bucket(address.Address("s3", "b")).read("object")
    assert busy.requests == 4
    with pytest.raises(errors.StorageError, match="Cannot fetch 's3://b/object'"):
        fetch.fetch("s3://b/object", tmp_path)
    saved = bucket.Bucket(address.Address("s3", "b", "p"))
    with pytest.raises(errors.StorageError, match="s3://b/p does not answer"):
        store.Store(saved, 1, "a", 1, lambda _: None)


class Generations(http.server.BaseHTTPRequestHandler):
    """One object of Google Cloud Storage, whose generation a write may name."""

    content = b"first"
    generation = 7

    def do_GET(self) -> None:
        self.answer(200, type(self).content)

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        kind = type(self)
        if self.headers["x-goog-if-generation-match"] != str(kind.generation):
            self.answer(412)
            return
        kind.content, kind.generation = content, kind.generation + 1
        self.answer(200)

    def answer(self, status: int, content: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Last-Modified", "Mon, 23 Nov 2026 00:00:00 GMT")
        self.send_header("ETag", '"tag"')
        self.send_header("x-goog-generation", str(type(self).generation))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def test_a_write_to_google_cloud_storage_names_the_generation_that_it_replaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No server of that store that runs offline takes the requests of its XML interface."""
    with serving(Generations) as url:
        monkeypatch.setenv("GOOGLE_BASE_URL", url)
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "a-token")
        missing_bucket = bucket.Bucket(address.Address("gs", "a-bucket"))
        before = missing_bucket.snapshot("object")
        assert before.content == b"first"
        assert missing_bucket.replace("object", before, b"second")
        assert not missing_bucket.replace("object", before, b"late")
        assert not missing_bucket.replace("object", directory.Snapshot(None), b"late")
        assert missing_bucket.read("object") == b"second"
    connection.connect.cache_clear()
