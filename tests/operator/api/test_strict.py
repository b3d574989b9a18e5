"""Values of a wrong type: the API server and the commands without one refuse the same."""

import copy
import json
import pathlib
from typing import Any

import pytest
import yaml
from click import testing as click_testing

from testing.operator import builders, harness
from tfparallel.cli import app
from tfparallel_operator.api import load, structure

WRONG: dict[str, tuple[str, Any, str]] = {
    "a number in quotes": ("spec.tfReplicaSpecs.Worker.replicas", "1", "received '1'; write a"),
    "a boolean as a number": ("spec.tfReplicaSpecs.Worker.replicas", True, "received True"),
    "a part of a number": ("spec.tfReplicaSpecs.Worker.replicas", 1.5, "received 1.5"),
    "a word as a boolean": ("spec.runPolicy.suspend", "yes", "received 'yes'; write true or false"),
    "a number as a boolean": ("spec.runPolicy.suspend", 1, "received 1; write true or false"),
    "a number as text": ("spec.trainer.checkpoint.claim", 7, "received 7; put it in quotes"),
    "text as a number": ("spec.trainer.epochs", "3", "received '3'; write a whole number"),
    "unknown metadata": ("metadata.owner", "me", "unknown field"),
}
RIGHT: dict[str, tuple[str, Any]] = {
    "a whole number with a point": ("spec.tfReplicaSpecs.Worker.replicas", 2.0),
    "a quantity as a number": ("spec.runPolicy.backoffLimit", 2),
    "metadata of any object": ("metadata.annotations", {"team": "a"}),
}


def manifest(path: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(builders.manifest(trainer=True, worker=1))
    document["metadata"] = {"name": "job"}
    *outer, last = path.split(".")
    place = document
    for part in outer:
        place = place.setdefault(part, {})
    place[last] = value
    return document


@pytest.mark.parametrize("case", WRONG)
def test_the_command_refuses_a_wrong_type(case: str, tmp_path: pathlib.Path) -> None:
    path, value, sentence = WRONG[case]
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(manifest(path, value)))
    for command in (["validate", str(file)], ["run", str(file)]):
        result = click_testing.CliRunner().invoke(app.tfparallel, command)
        assert result.exit_code != 0
        assert f"{path}: " in result.output
        assert sentence in " ".join(result.output.split())


@pytest.mark.parametrize("case", RIGHT)
def test_what_the_api_server_takes_is_valid(case: str) -> None:
    load.parse_manifest(manifest(*RIGHT[case]))


def test_the_operator_takes_metadata_of_a_newer_kubernetes() -> None:
    load.parse_job(manifest("metadata.ofTomorrow", "x"))


def test_a_number_too_large_for_a_float_is_a_number() -> None:
    assert list(structure.mismatches({"type": "integer"}, 10**400, ("field",))) == []


async def test_the_api_server_judges_alike(place: harness.Place, tmp_path: pathlib.Path) -> None:
    for path, value, _ in WRONG.values():
        with pytest.raises(Exception, match=r"(?i)invalid|unknown|must be|strict"):
            _create(place, tmp_path, manifest(path, value))
    for path, value in RIGHT.values():
        _create(place, tmp_path, manifest(path, value))


def _create(place: harness.Place, folder: pathlib.Path, document: dict[str, Any]) -> None:
    file = folder / "job.json"
    file.write_text(json.dumps(document))
    place.kubectl("create", "--dry-run=server", "--validate=strict", "-f", str(file))
