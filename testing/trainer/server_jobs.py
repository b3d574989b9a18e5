"""What tests of parameter servers have in common."""

import json
import pathlib
import time
from collections.abc import Callable

from testing.trainer import launch
from tfparallel_trainer.checkpoint import store
from tfparallel_trainer.contract import environment, outputs

EXAMPLE = launch.REPOSITORY / "examples" / "digits-servers"
CHECKPOINT: dict[str, object] = {"claim": "c", "everySteps": 15, "keep": 2}


def wait(group: launch.Group) -> list[launch.Ended]:
    """Wait for a group whose chief ends well; without that the others would wait for it."""
    assert group.processes[0].wait(120) == 0, group.result(0)
    return group.wait(20)


def without(given: dict[str, str], role: str, index: int) -> dict[str, str]:
    """An environment whose cluster lacks the tasks of a role from an index on."""
    config = json.loads(given[environment.TF_CONFIG])
    config["cluster"][role] = config["cluster"][role][:index]
    return {**given, environment.TF_CONFIG: json.dumps(config)}


def newest_checkpoint(folder: pathlib.Path) -> int:
    """The step of the newest checkpoint; 0 before the first."""
    found = folder / "output" / outputs.CHECKPOINTS
    if not found.is_dir():
        return 0
    return max((store.step_of(one) for one in store.checkpoints(found)), default=0)


def until(condition: Callable[[], bool], what: str, limit: float = 90) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
