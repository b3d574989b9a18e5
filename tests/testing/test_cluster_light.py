"""The light cluster is a real API server, alone or with pretended nodes."""

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest

from testing.cluster import (
    cluster_fixtures,
    console,
    folders,
    lifecycle,
    light,
    process,
    settings,
    state,
)

pytestmark = pytest.mark.usefixtures("cluster_programs")


def test_second_up_finds_the_first_and_down_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    first = lifecycle.up("mine", settings.Light(), folder)
    cluster_state = state.load(folder)
    assert cluster_state is not None
    assert lifecycle.up("mine", settings.Light(), folder) == first
    assert state.load(folder) == cluster_state
    with pytest.raises(console.ClusterError, match="runs already"):
        lifecycle.up("mine", settings.Light(controllers=True), folder)
    assert lifecycle.down("mine", folder)
    assert not any(process.alive(record) for record in cluster_state.processes)
    assert not folder.exists()
    assert not lifecycle.down("mine", folder)


def test_what_a_killed_up_left_behind_is_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(light, "up", lambda *_: None)
    folder = tmp_path / "mine"
    folder.mkdir()
    settled = settings.Light()
    ledger = state.Ledger(
        folder, state.ClusterState("mine", settled.mode, dataclasses.asdict(settled))
    )
    orphan = ledger.start("orphan", ["sleep", "600"])
    lifecycle.up("mine", settled, folder)
    assert not process.alive(orphan)
    lifecycle.down("mine", folder)


def test_cluster_of_a_killed_test_session_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFPARALLEL_CACHE", str(tmp_path))
    with subprocess.Popen(["true"]) as session:
        pass
    folder = folders.clusters() / f"pytest-light-{session.pid}"
    folder.mkdir(parents=True)
    ledger = state.Ledger(folder, state.ClusterState(folder.name, settings.Light.mode, {}))
    orphan = ledger.start("orphan", ["sleep", "600"])
    neighbour = folders.clusters() / f"pytest-kueue-{os.getppid()}"
    neighbour.mkdir()
    state.Ledger(neighbour, state.ClusterState(neighbour.name, settings.Light.mode, {}))
    cluster_fixtures.end_abandoned()
    assert not process.alive(orphan)
    assert not folder.exists()
    assert neighbour.exists()


def test_each_session_names_its_clusters_differently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFPARALLEL_CACHE", str(tmp_path))
    monkeypatch.setattr(light, "up", lambda *_: None)
    # Left behind by a session that had our process id: it is not used again.
    folder = folders.clusters() / f"pytest-kueue-{os.getpid()}"
    folder.mkdir(parents=True)
    left = state.Ledger(folder, state.ClusterState(folder.name, settings.Light.mode, {}))
    orphan = left.start("orphan", ["sleep", "600"])
    running = cluster_fixtures.running("KUEUE", settings.Light())
    assert next(running).name == folder.name
    assert lifecycle.SESSION_NAME.fullmatch(folder.name)
    assert not process.alive(orphan)
    running.close()
    assert not folder.exists()


def test_failing_up_ends_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[process.Record] = []
    original = process.start

    def start_and_fail(name: str, *arguments: object, **options: object) -> process.Record:
        if name == "kube-apiserver":
            raise KeyboardInterrupt
        record = original(name, *arguments, **options)  # type: ignore[arg-type]
        started.append(record)
        return record

    monkeypatch.setattr(process, "start", start_and_fail)
    with pytest.raises(KeyboardInterrupt):
        lifecycle.up("mine", settings.Light(), tmp_path / "mine")
    assert [record.name for record in started] == ["etcd"]
    assert not process.alive(started[0])
    assert not (tmp_path / "mine").exists()


def test_foreign_process_with_a_reused_id_is_left_alone(tmp_path: Path) -> None:
    stranger = process.start("stranger", ["sleep", "600"], tmp_path / "log")
    process.stop([dataclasses.replace(stranger, started="another boot:1")])
    assert process.alive(stranger)
    process.stop([stranger])
    assert not process.alive(stranger)


def test_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("irreplaceable")
    with pytest.raises(console.ClusterError, match="is not empty"):
        lifecycle.up("mine", settings.Light(), tmp_path)
    assert not lifecycle.down("mine", tmp_path)
    assert (tmp_path / "thesis.txt").exists()
