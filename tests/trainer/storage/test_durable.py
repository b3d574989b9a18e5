"""Files that outlast a power cut, and drafts that no two writers share."""

import os
import pathlib

import pytest

from tfparallel_trainer.storage import durable
from tfparallel_trainer.storage import folder as folders


def test_no_two_drafts_have_one_name(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.keras"
    first, second = durable.draft(path), durable.draft(path)
    assert first != second
    assert all(draft.name.startswith(".") for draft in (first, second))
    assert all(draft.suffix == ".keras" for draft in (first, second))


def test_a_folder_is_on_the_disk_before_it_has_its_name(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, os.replace

    def recorded_fsync(descriptor: int) -> None:
        steps.append(pathlib.Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def recorded_rename(source: pathlib.Path, target: pathlib.Path) -> None:
        steps.append(f"rename to {target.name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "replace", recorded_rename)
    draft = durable.draft(tmp_path / "saved_model")
    (draft / "variables").mkdir(parents=True)
    for name in ("saved_model.pb", "variables/variables.index"):
        (draft / name).write_text("content")
    (draft / "link").symlink_to("/dev/null")
    durable.publish(draft, tmp_path / "saved_model")
    before, after = steps[: steps.index("rename to saved_model")], steps[-1]
    assert set(before) == {"saved_model.pb", "variables.index", "variables", draft.name}
    assert before[-1] == draft.name
    assert before.index("variables.index") < before.index("variables")
    assert after == tmp_path.name


def test_a_folder_that_cannot_be_replaced_stays(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "saved_model"
    path.mkdir()
    (path / "saved_model.pb").write_text("before")
    draft = durable.draft(path)
    draft.mkdir()

    def refused(*_: object) -> None:
        raise OSError("refused")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", refused)
        with pytest.raises(OSError, match="refused"):
            durable.publish(draft, path)
    assert (path / "saved_model.pb").read_text() == "before"
    (draft / "saved_model.pb").write_text("after")
    durable.publish(draft, path)
    assert [path.name for path in tmp_path.iterdir()] == ["saved_model"]
    assert (path / "saved_model.pb").read_text() == "after"


def test_drafts_of_killed_processes_are_removed_and_nothing_else(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.keras"
    durable.draft(path).write_text("half")
    durable.draft(path).mkdir()
    for name in (".77.model.keras", ".model.keras.77"):  # as older versions name them
        (tmp_path / name).write_text("half")
    others = {".my-model.keras", "model.keras", ".draft-mine-model.keras"}
    for name in others:
        (tmp_path / name).write_text("a person's")
    durable.remove_drafts(path)
    assert {path.name for path in tmp_path.iterdir()} == others


def test_a_write_removes_drafts_that_are_old_and_no_others(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "owner.json"
    old, fresh = durable.draft(path), durable.draft(path)
    for draft in (old, fresh):
        draft.write_text("half")
    os.utime(old, (0, 0))
    folders.Folder(tmp_path).write("owner.json", b"whole")
    assert sorted(tmp_path.iterdir()) == sorted([path, fresh])
    assert path.read_bytes() == b"whole"


@pytest.mark.parametrize("draft_kind", ["file", "folder"])
@pytest.mark.parametrize(
    "place_kind", ["file", "folder", "link to a folder", "link to nothing", "absent"]
)
def test_whatever_has_the_name_is_replaced(
    tmp_path: pathlib.Path, draft_kind: str, place_kind: str
) -> None:
    path, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    draft = durable.draft(path)
    for target, kind in ((draft, draft_kind), (path, place_kind)):
        if kind == "file":
            target.write_text(f"{target == draft}")
        elif kind == "folder":
            target.mkdir()
            (target / "content").write_text(f"{target == draft}")
        elif kind != "absent":
            target.symlink_to("elsewhere" if kind == "link to a folder" else "nowhere")
    durable.publish(draft, path)
    content = path if draft_kind == "file" else path / "content"
    assert content.read_text() == "True"
    assert not path.is_symlink()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["elsewhere", "model"]
    assert (elsewhere / "kept").exists()
