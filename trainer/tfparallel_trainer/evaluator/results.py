"""What the evaluator has found, as the chief and the evaluator's next run read it.

The two share nothing but where results are kept, so a small file there is all that passes between
them. Of a job that was deleted and made again the file is another job's, which its uid shows.
"""

import time
from collections.abc import Callable

import pydantic

from tfparallel_trainer import preflight, settings
from tfparallel_trainer.contract import outputs

_LOOK_EVERY_SECONDS = 0.5
_SILENCE_SECONDS = 60.0
"""How long an evaluator may show no sign of life before the chief no longer waits for it."""


def read(given: settings.Settings) -> outputs.Evaluated | None:
    """How far the evaluator of this job has come; None when it has not begun."""
    try:
        found = outputs.Evaluated.model_validate_json(given.results.read(outputs.EVALUATION))
    except (OSError, pydantic.ValidationError):
        return None
    same = (found.job_digest, found.job_uid) == (given.digest, given.job_uid)
    return found if same else None


def metrics(given: settings.Settings) -> dict[str, float]:
    """The latest metrics of the job's evaluator with val_ before their names."""
    found = read(given) if given.job.evaluator else None
    if found is None:
        return {}
    return {f"val_{name}": float(value) for name, value in found.metrics.items()}


def owed(given: settings.Settings) -> bool:
    """Whether this process is an evaluator that has not evaluated the last step of training."""
    ended, found = preflight.end_of(given), read(given)
    return given.evaluates and (ended is None or found is None or found.step != ended.steps)


def wait_for(
    step: int,
    given: settings.Settings,
    say: Callable[[str], None],
    moved: Callable[[str], None],
) -> None:
    """Wait until the evaluator has evaluated the checkpoint of a step; not for one that is dead.

    Args:
        step: the last step of training.
        given: the settings of the chief.
        say: writes a line for people.
        moved: hears of each look, because a disk may not answer.
    """
    limit = given.job.trainer.start_timeout_seconds
    began = changed = time.monotonic()
    before = read(given)
    if before is None or before.step != step:
        say(f"waiting for the evaluator to evaluate step {step}")
    while (found := read(given)) is None or found.step != step:
        moved("a look for the evaluator's results")
        now = time.monotonic()
        if found != before:
            before, changed = found, now
        if now - changed > _SILENCE_SECONDS or now - began > limit:
            say(
                f"warning: the evaluator has not evaluated step {step} in {now - began:.0f} s, and "
                "the job ends without it: see the evaluator's log"
            )
            return
        time.sleep(_LOOK_EVERY_SECONDS)
