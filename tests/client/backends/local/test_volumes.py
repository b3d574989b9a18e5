"""Volumes of a local run lie below its folder, whatever a job's file names."""

import dataclasses
import pathlib
from typing import Any

import pytest

from testing.operator import builders
from tfparallel.backends.local import folders, volumes
from tfparallel_operator.api import load

OBJECTS = {"..": {"key": "x"}, "code": {"key": "x", "../key": "x"}}


def volumes_of(root: pathlib.Path) -> volumes.Volumes:
    return volumes.Volumes(folders.Folders(root / "run"), root, "token", OBJECTS)


@pytest.mark.parametrize(
    "volume",
    [
        {"name": "v", "persistentVolumeClaim": {"claimName": "../.."}},
        {"name": "v", "persistentVolumeClaim": {"claimName": ".."}},
        {"name": "v", "persistentVolumeClaim": {"claimName": "/elsewhere"}},
        {"name": "v", "persistentVolumeClaim": {"claimName": ""}},
        {"name": "../../v", "emptyDir": {}},
        {"name": "v", "configMap": {"name": ".."}},
        {"name": "v", "configMap": {"name": "code"}},
        {"name": "v", "secret": {"secretName": ".."}},
        {"name": "v", "configMap": {"name": "code", "items": [{"key": "key", "path": "../../k"}]}},
        {"name": "v", "configMap": {"name": "code", "items": [{"key": "key", "path": "/k"}]}},
        {
            "name": "v",
            "projected": {"sources": [{"serviceAccountToken": {"path": "../../../token"}}]},
        },
    ],
)
def test_a_volume_that_leads_out_of_the_run_is_refused(
    volume: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    with pytest.raises(load.SpecError, match=r"received .*; give"):
        volumes_of(tmp_path).folder(volume, "job-worker-0", OBJECTS)


def test_a_part_of_a_volume_that_leads_out_of_it_is_refused(tmp_path: pathlib.Path) -> None:
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "data.2026"}}
    folder = volumes_of(tmp_path).folder(volume, "job-worker-0", {})
    assert folder.target == tmp_path / "run/claims/data.2026"
    assert dataclasses.replace(folder, below="a/b").target == folder.path / "a/b"
    with pytest.raises(load.SpecError, match="leads out of it"):
        dataclasses.replace(folder, below="../..")


@pytest.mark.parametrize("claim", ["../..", "a/b", ".", "", "Upper", "a" * 254])
def test_a_claim_of_checkpoints_has_the_name_of_a_claim(claim: str) -> None:
    document = builders.manifest(trainer=True, worker=1)
    document["spec"]["trainer"]["checkpoint"] = {"claim": claim}
    with pytest.raises(load.SpecError, match=r"checkpoint\.claim"):
        load.parse_job(document)
    document["spec"]["trainer"]["checkpoint"] = {"claim": "data.2026-a"}
    load.parse_job(document)
