"""Every example trains to its end in pods, by the command that its page shows."""

import json

import pytest

from testing import paths
from testing.e2e import namespaces, volumes

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

EXAMPLES = sorted({file.parent.name for file in paths.example_jobs()})
SECONDS = 900.0


@pytest.fixture
def place(example: str, make_namespace: namespaces.Make) -> namespaces.Namespace:
    """A namespace that enforces the level restricted, and a volume if the example has a claim."""
    namespace = make_namespace(example)
    if (paths.EXAMPLES / example / "claim.yaml").exists():
        volumes.provide(namespace)
    return namespace


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_trains_in_pods(example: str, place: namespaces.Namespace) -> None:
    place.kubectl("apply", f"--kustomize={paths.EXAMPLES / example}")
    [job] = json.loads(place.kubectl("get", "tfpj", "--output=json"))["items"]
    name = job["metadata"]["name"]
    status = place.wait_ended(name, SECONDS)["status"]
    assert status["state"] == "Succeeded", place.describe(name)
    assert status["restarts"] == {"failure": 0, "disruption": 0}
    place.kubectl("delete", f"--kustomize={paths.EXAMPLES / example}", "--ignore-not-found")
