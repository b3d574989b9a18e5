"""Which checkpoints stay: damage costs the damaged one, and never what can still be read."""

import errno
import json
import os
import pathlib
import shutil
from collections.abc import Callable

import pytest

from testing import repeats
from testing.trainer import checkpoints
from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import entries, files, retention, store
from tfparallel_trainer.storage import folder as folders


def kept(folder: pathlib.Path) -> list[int]:
    return [entries.step_of(entry) for entry in entries.checkpoints(folders.Folder(folder))]


def save(saved: store.Store, *steps: int) -> None:
    for step in steps:
        saved.save(checkpoints.state(step), checkpoints.at(step))


def flip(path: pathlib.Path, bit: int = 24) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(content))


def damage(folder: pathlib.Path, *steps: int, name: str = "part-00000.bin") -> None:
    for step in steps:
        flip(folder / entries.name(step) / name)


def restored(folder: pathlib.Path) -> files.Position | None:
    """What the job's next attempt begins with."""
    return checkpoints.opened(folder, None).restore(checkpoints.state(0))


@pytest.mark.parametrize("name", ["part-00000.bin", "part-00000.json", "index.json"])
@pytest.mark.parametrize("keep", [1, 3])
def test_what_is_saved_below_damaged_checkpoints_stays(
    tmp_path: pathlib.Path, keep: int, name: str
) -> None:
    save(checkpoints.opened(tmp_path, 1, keep), *(800, 900, 1000)[-keep:])
    damage(tmp_path, *kept(tmp_path), name=name)
    saved = checkpoints.opened(tmp_path, 2, keep)
    assert saved.restore(checkpoints.state(0)) is None
    for step in (100, 200, 300):
        save(saved, step)
        assert restored(tmp_path) == checkpoints.at(step)
        saved = checkpoints.opened(tmp_path, None, keep)
    assert kept(tmp_path) == [100, 200, 300][-keep:]


def test_damaged_checkpoints_are_passed_over_without_a_restore_too(tmp_path: pathlib.Path) -> None:
    save(checkpoints.opened(tmp_path, 1, 3), 800, 900, 1000)
    damage(tmp_path, 800, 900, 1000)
    saved = checkpoints.opened(tmp_path, 2, 1)
    save(saved, 100)
    assert kept(tmp_path) == [100]


def test_a_kept_checkpoint_that_is_damaged_later_does_not_count(tmp_path: pathlib.Path) -> None:
    saved = checkpoints.opened(tmp_path, 1, 2)
    save(saved, 10, 20)
    damage(tmp_path, 20)
    save(saved, 30)
    assert kept(tmp_path) == [10, 30]
    damage(tmp_path, 30)
    assert restored(tmp_path) == checkpoints.at(10)


def test_an_older_checkpoint_stays_if_the_new_one_reads_back_damaged(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = checkpoints.opened(tmp_path, 1, 1)
    save(saved, 10)
    publish = folders.Folder.publish

    def damaging(self: folders.Folder, draft: folders.Folder, name: str, index: bytes) -> None:
        publish(self, draft, name, index)
        damage(tmp_path, 20)

    monkeypatch.setattr(folders.Folder, "publish", damaging)
    with pytest.raises(errors.StorageError, match="checkpoint of step 20 is not whole"):
        save(saved, 20)
    assert restored(tmp_path) == checkpoints.at(10)


def test_a_damaged_checkpoint_does_not_win_later_and_is_kept_to_be_looked_at(
    tmp_path: pathlib.Path,
) -> None:
    saved = checkpoints.opened(tmp_path, 1, 5)
    save(saved, 10, 20, 30, 40, 50)
    damage(tmp_path, 20, 30, 40, 50)
    saved = checkpoints.opened(tmp_path, 2, 1)
    assert saved.restore(checkpoints.state(0)) == checkpoints.at(10)
    hidden = [path.name for path in sorted(tmp_path.glob(".damaged-*"))]
    assert hidden == [f".damaged-{entries.name(step)}" for step in (20, 30, 40, 50)]
    flip(tmp_path / hidden[-1] / "part-00000.bin")  # it can be read again
    save(saved, 11)
    assert restored(tmp_path) == checkpoints.at(11)
    assert kept(tmp_path) == [11]
    hidden = [path.name for path in sorted(tmp_path.glob(".damaged-*"))]
    assert hidden == [f".damaged-{entries.name(step)}" for step in (40, 50)]
    assert len(hidden) == retention.QUARANTINED
    (tmp_path / hidden[-1]).rename(tmp_path / entries.name(50))  # as a person may
    assert restored(tmp_path) == checkpoints.at(50)


def test_folders_of_a_person_stay(tmp_path: pathlib.Path) -> None:
    saved = checkpoints.opened(tmp_path, 1, 1)
    save(saved, 10)
    copies = ["step-0000009999-my-backup", "step-0000000001-my-backup", "step-0000000010.old"]
    for name in copies:
        shutil.copytree(tmp_path / entries.name(10), tmp_path / name)
    save(saved, 20, 30, 40)
    assert kept(tmp_path) == [40]
    assert all((tmp_path / name / "index.json").is_file() for name in copies)
    assert restored(tmp_path) == checkpoints.at(40)


def refusing(read: Callable[..., bytes], step: int) -> Callable[..., bytes]:
    def read_range(self: folders.Folder, *arguments: object) -> bytes:
        if self.name == entries.name(step):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(self, *arguments)

    return read_range


def test_a_checkpoint_that_the_storage_does_not_give_for_now_costs_no_other(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = checkpoints.opened(tmp_path, 1, 2)
    save(saved, 10, 20)
    with monkeypatch.context() as patched:
        patched.setattr(folders.Folder, "read_range", refusing(folders.Folder.read_range, 20))
        save(checkpoints.opened(tmp_path, 2, 2), 30)
    assert kept(tmp_path) == [10, 20, 30]
    save(checkpoints.opened(tmp_path, 3, 2), 40)
    assert kept(tmp_path) == [30, 40]


def test_training_does_not_begin_anew_while_no_checkpoint_can_be_read(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(checkpoints.opened(tmp_path, 1, 2), 10)
    with monkeypatch.context() as patched:
        patched.setattr(folders.Folder, "read_range", refusing(folders.Folder.read_range, 10))
        with pytest.raises(errors.StorageError, match=r"No checkpoint in .* can be read for now"):
            restored(tmp_path)
    assert restored(tmp_path) == checkpoints.at(10)


@pytest.mark.parametrize("distance", repeats.some([1, 7], [7]))
def test_any_flipped_bit_is_damage(tmp_path: pathlib.Path, distance: int) -> None:
    save(checkpoints.opened(tmp_path), 7)
    checkpoint = folders.Folder(tmp_path / entries.name(7))
    for path in sorted(checkpoint.path.iterdir()):
        for bit in range(0, path.stat().st_size * 8, distance):
            flip(path, bit)
            with pytest.raises(files.DamagedError):
                dict(files.read(checkpoint, files.read_index(checkpoint)))
            flip(path, bit)
    assert files.read_index(checkpoint).position == checkpoints.at(7)


def test_an_index_of_another_step_than_its_name_is_damage(tmp_path: pathlib.Path) -> None:
    save(checkpoints.opened(tmp_path), 7)
    (tmp_path / entries.name(7)).rename(tmp_path / entries.name(9))
    assert restored(tmp_path) is None


def test_an_index_without_a_sum_is_read_and_one_of_no_version_is_damage(
    tmp_path: pathlib.Path,
) -> None:
    save(checkpoints.opened(tmp_path), 7)
    path = tmp_path / entries.name(7) / "index.json"
    newer = path.read_bytes()
    assert json.loads(newer)["format"] == 3  # who knows no sum refuses it, and removes nothing
    unsummed = newer.partition(b',\n "crc32"')[0] + b"\n}"
    older = unsummed.replace(b'"format": 3', b'"format": 2')
    path.write_bytes(older)
    assert restored(tmp_path) == checkpoints.at(7)
    for number in (b"0", b"3", b"6", b"true"):  # 2 with one flipped bit
        path.write_bytes(older.replace(b'"format": 2', b'"format": ' + number))
        with pytest.raises(files.DamagedError, match="has format"):
            files.read_index(folders.Folder(path.parent))


@pytest.mark.parametrize("content", [b"", b"[" * 10_000, b'{"format": 1e999}', b"\xff\xfe{"])
def test_an_index_that_is_no_index_is_damage(tmp_path: pathlib.Path, content: bytes) -> None:
    save(checkpoints.opened(tmp_path, 1, 2), 7, 8)
    (tmp_path / entries.name(8) / "index.json").write_bytes(content)
    assert restored(tmp_path) == checkpoints.at(7)


@pytest.mark.parametrize("kind", ["file", "link", "removed with difficulty"])
def test_what_has_the_name_of_a_checkpoint_or_a_damaged_one_stops_no_save(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    save(checkpoints.opened(tmp_path, 1, 1), 7)
    hidden = tmp_path / f".damaged-{entries.name(8)}"
    if kind == "file":
        hidden.write_text("of a person")
    elif kind == "link":
        hidden.symlink_to("nowhere")
    else:
        (hidden / "part").mkdir(parents=True)
        monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    (tmp_path / entries.name(8)).mkdir()
    saved = checkpoints.opened(tmp_path, 2, 1)
    save(saved, 8)
    assert restored(tmp_path) == checkpoints.at(8)


def test_a_link_to_a_checkpoint_is_removed_as_one_and_leaves_what_it_leads_to(
    tmp_path: pathlib.Path,
) -> None:
    folder, elsewhere = tmp_path / "checkpoints", tmp_path / "elsewhere"
    folder.mkdir()
    save(checkpoints.opened(folder, 1, 1), 7)
    (folder / entries.name(7)).rename(elsewhere)
    (folder / entries.name(7)).symlink_to(elsewhere)
    (folder / ".writing-file").write_text("left")
    assert restored(folder) == checkpoints.at(7)
    save(checkpoints.opened(folder, 2, 1), 8)
    assert sorted(path.name for path in folder.iterdir()) == ["owner.json", entries.name(8)]
    assert len(list(elsewhere.iterdir())) == 3


def test_a_removed_checkpoint_is_a_draft_from_the_first_moment(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = checkpoints.opened(tmp_path, 1, 1)
    save(saved, 10)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            save(saved, 20)
    assert kept(tmp_path) == [20]
    assert len(list(tmp_path.glob(".writing-removed-*"))) == 1
    save(checkpoints.opened(tmp_path, 2, 1), 30)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["owner.json", entries.name(30)]
