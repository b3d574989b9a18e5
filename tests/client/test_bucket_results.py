"""Results in a bucket, as the client finds and lists them."""

import pathlib

import pytest

from testing import buckets, result_files
from tfparallel import errors
from tfparallel.results import bucket, download, files
from tfparallel_trainer.storage import address
from tfparallel_trainer.storage import bucket as storage_bucket


async def test_a_bucket(s3: buckets.Bucket, tmp_path: pathlib.Path) -> None:
    for name, content in result_files.RESULTS.items():
        s3.put(f"runs/digits/{name}", content)
    storage = bucket.BucketStore(address.Address.parse(s3.uri).child("digits"))
    listed = await storage.list_files()
    assert {file.path for file in listed} == {*result_files.RESULTS}
    [model] = files.select(listed, files.ResultSelection.MODEL)
    assert b"".join([chunk async for chunk in storage.read(model, 95)]) == result_files.MODEL[95:]
    await download.fetch(
        storage, files.select(listed, files.ResultSelection.ALL), tmp_path, lambda _: None, print
    )
    assert (tmp_path / "model.keras").read_bytes() == result_files.MODEL


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
    storage = bucket.BucketStore(address.Address.parse("s3://no-such-bucket-at-all/x"))
    with pytest.raises(errors.Failure, match="does not exist"):
        await storage.list_files()


async def test_what_stands_for_a_folder_in_a_bucket_is_no_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = {"": 0, "/logs": 0, "/logs/train": 0, "/logs/train/a": 3, "/best": 4, "/best/a": 5}
    objects = [{"path": f"runs/digits{name}", "size": size} for name, size in sizes.items()]
    monkeypatch.setattr(storage_bucket.Bucket, "objects", lambda _: objects)
    storage = bucket.BucketStore(address.Address.parse("s3://b/runs/digits"))
    assert {file.path: file.problem for file in await storage.list_files()} == {
        "logs/train/a": "",
        "best": "other files have its name as their folder",
        "best/a": "",
    }
