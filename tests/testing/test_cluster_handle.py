"""What a test holds of a cluster, where no real one can be made to answer so."""

import json
import pathlib
from typing import Any

from testing.cluster import handle

FOLDER = pathlib.Path("/nowhere")
ANSWERS: list[dict[str, Any]] = [
    {},
    {"status": {"conditions": None, "storedVersions": None}},
    {"status": {"conditions": [{"type": "NamesAccepted", "status": "True"}]}},
    {"status": {"conditions": [{"type": "Established", "status": "False"}]}},
    {"status": {"conditions": [{"type": "Established", "status": "True"}]}},
]
"""What the API server may show of a CustomResourceDefinition, from its creation on."""


def test_a_definition_whose_conditions_are_null_is_waited_for() -> None:
    """`kubectl wait` fails on it, with a jsonpath too."""
    answers = iter(ANSWERS)

    class Answering(handle.Cluster):
        def run_kubectl(self, *_: str, **__: Any) -> str:
            return json.dumps(next(answers))

    Answering("c", "light", FOLDER, FOLDER, FOLDER, FOLDER).wait_established("foos.example")
    assert next(answers, None) is None
