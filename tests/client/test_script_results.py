"""Where a script keeps its results, by the claims that its containers mount."""

from typing import Any

import pytest

from testing.operator import local_jobs as jobs
from tfparallel import errors
from tfparallel.results import script
from tfparallel_operator.api import load, types


def _script_job(*mounts: dict[str, Any]) -> types.TFParallelJob:
    """A job of a script with volumes `output`, of a template, and `data`, a claim."""
    volumes = [
        {"name": "output", "persistentVolumeClaim": {"claimName": "output"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "images"}},
        {"name": "scratch", "emptyDir": {}},
    ]
    template = jobs.template(["true"], volumeMounts=list(mounts), pod_spec={"volumes": volumes})
    claim_template = {
        "metadata": {"name": "output"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    roles = {"Worker": {"template": template}}
    return load.read_job(jobs.job(roles, name="fit", volumeClaimTemplates=[claim_template]))


_OUTPUT = {"name": "output", "mountPath": "/output"}


_DATA = {"name": "data", "mountPath": "/data"}


@pytest.mark.parametrize(
    ("mounts", "path", "expected"),
    [
        ([_OUTPUT], None, ("fit-output", ".")),
        ([_OUTPUT], "/output/runs/1/", ("fit-output", "runs/1")),
        ([_OUTPUT, {**_DATA, "readOnly": True}], None, ("fit-output", ".")),
        ([_OUTPUT, {**_DATA, "subPath": "mine"}], "/data/run", ("images", "mine/run")),
        ([_OUTPUT, {**_DATA, "mountPath": "/output/data"}], "/output/data/x", ("images", "x")),
    ],
)
def test_the_claim_of_a_script(
    mounts: list[dict[str, Any]], path: str | None, expected: tuple[str, str]
) -> None:
    results = script.find(_script_job(*mounts), path)
    assert (results.claim, str(results.path)) == expected


@pytest.mark.parametrize(
    ("mounts", "path", "sentence"),
    [
        ([{"name": "scratch", "mountPath": "/tmp/x"}], None, "mount no claim that they may write"),
        ([{**_OUTPUT, "readOnly": True}], None, "mount no claim that they may write"),
        ([_OUTPUT], "/outputs", "nothing in /outputs: its containers mount claim 'fit-output' at"),
        ([_OUTPUT, _DATA], None, "'images' at /data. Choose the folder of the results with --path"),
    ],
)
def test_a_script_that_keeps_nothing_or_in_several_claims(
    mounts: list[dict[str, Any]], path: str | None, sentence: str
) -> None:
    with pytest.raises(errors.Failure, match=sentence):
        script.find(_script_job(*mounts), path)
