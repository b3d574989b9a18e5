"""Values of a wrong type: the API server and the commands without one refuse the same."""

import copy
import json
import pathlib
from typing import Any

import pytest
import yaml

from testing import invocation
from testing.operator import builders
from testing.operator.namespaces import Namespace
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
    "a field as Python writes it": ("spec.run_policy", {}, "unknown field; did you mean"),
    "a number as a label": ("metadata.labels.team", 1, "received 1; put it in quotes"),
    "a label with spaces": ("metadata.labels.team", "a b", "received 'a b'; write at most"),
    "a label with two prefixes": ("metadata.labels.a/b/c", "", "received 'a/b/c'; write NAME"),
    "a number as an annotation": ("metadata.annotations.a", 1, "received 1; put it in"),
    "a word as a quantity": (
        "spec.runPolicy.schedulingPolicy.minResources.cpu",
        True,
        "received True; write a quantity",
    ),
    "a number above 64 bits": ("spec.trainer.epochs", 2**63, "write a whole number"),
    "a prefix of a name": ("metadata.generateName", "Job-", "received 'Job-'; write lower-case"),
}
RIGHT: dict[str, tuple[str, Any]] = {
    "a whole number with a point": ("spec.tfReplicaSpecs.Worker.replicas", 2.0),
    "a quantity as a number": ("spec.runPolicy.backoffLimit", 2),
    "metadata of any object": ("metadata.annotations", {"team": "a"}),
    "metadata that is null": ("metadata.creationTimestamp", None),
    "a label that is null": ("metadata.labels.team", None),
    "a field that is null": ("spec.runPolicy", None),
    "a role that is null": ("spec.tfReplicaSpecs.Evaluator", None),
    "a default in place of null": ("spec.tfReplicaSpecs.Worker.replicas", None),
    "a status, which counts for nothing": ("status.state", 5),
}


def manifest(path: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(builders.manifest(trainer=True, worker=1))
    document["metadata"] = {"name": "job"}
    *outer, last = path.split(".")
    namespace = document
    for part in outer:
        namespace = namespace.setdefault(part, {})
    namespace[last] = value
    return document


@pytest.mark.parametrize("case", WRONG)
def test_the_command_refuses_a_wrong_type(case: str, tmp_path: pathlib.Path) -> None:
    path, value, sentence = WRONG[case]
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(manifest(path, value)))
    for command in (["validate", str(file)], ["run", str(file)]):
        result = invocation.invoke(command)
        assert result.exit_code != 0
        assert f"{path}: " in result.output
        assert sentence in " ".join(result.output.split())


@pytest.mark.parametrize("case", RIGHT)
def test_what_the_api_server_takes_is_valid(case: str) -> None:
    load.parse_manifest(manifest(*RIGHT[case]))


def test_the_operator_takes_metadata_of_a_newer_kubernetes() -> None:
    load.parse_job(manifest("metadata.ofTomorrow", "x"))


@pytest.mark.parametrize("number", [10**400, 2**63, -(2**63) - 1, 1e17])
def test_a_number_that_is_too_large_for_the_api_server_is_refused(number: float) -> None:
    assert list(structure.mismatches({"type": "integer"}, number, ("field",)))
    assert not list(structure.mismatches({"type": "integer"}, 2**63 - 1, ("field",)))


async def test_the_api_server_judges_alike(namespace: Namespace, tmp_path: pathlib.Path) -> None:
    for path, value, _ in WRONG.values():
        with pytest.raises(Exception, match=r"(?i)invalid|unknown|must be|strict"):
            _create(namespace, tmp_path, manifest(path, value))
    for path, value in RIGHT.values():
        _create(namespace, tmp_path, manifest(path, value))


def _create(namespace: Namespace, folder: pathlib.Path, document: dict[str, Any]) -> None:
    file = folder / "job.json"
    file.write_text(json.dumps(document))
    namespace.kubectl("create", "--dry-run=server", "--validate=strict", "-f", str(file))
