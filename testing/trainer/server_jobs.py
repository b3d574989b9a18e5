"""Jobs with parameter servers, and how tests change them between two starts."""

import json
import pathlib

from testing.trainer import launch
from tfparallel_trainer.contract import environment

EXAMPLE = launch.REPOSITORY / "examples" / "digits-servers"
CHECKPOINT: dict[str, object] = {"claim": "c", "everySteps": 15, "keep": 2}


def without(variables: dict[str, str], role: str, index: int) -> dict[str, str]:
    """Return an environment whose cluster lacks the tasks of a role from an index on."""
    config = json.loads(variables[environment.TF_CONFIG])
    config["cluster"][role] = config["cluster"][role][:index]
    return {**variables, environment.TF_CONFIG: json.dumps(config)}


def changed(variables: dict[str, str], **trainer: object) -> dict[str, str]:
    """Return an environment with another job file, in which these fields of trainer differ."""
    file = pathlib.Path(variables[environment.JOB_FILE])
    job = json.loads(file.read_text())
    copy = file.with_name("changed.json")
    copy.write_text(json.dumps({**job, "trainer": {**job["trainer"], **trainer}}))
    return {**variables, environment.JOB_FILE: str(copy)}
