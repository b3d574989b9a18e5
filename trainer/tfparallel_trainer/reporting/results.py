"""Reads what earlier runs and the evaluator of a job have left where its results are kept.

The chief and the evaluator share nothing but this directory, so a small file there is all that
passes between them. If a job was deleted and made again, the uid tells its file from the old one.
"""

import pathlib
import time
import zipfile
from collections.abc import Callable, Mapping

import pydantic

from tfparallel_trainer.contract import outputs
from tfparallel_trainer.process_settings import Settings
from tfparallel_trainer.storage import bucket

_LOOK_EVERY_SECONDS = 0.5
_SILENCE_SECONDS = 60.0
"""How long an evaluator may show no sign of life before the chief no longer waits for it."""


def read(settings: Settings) -> outputs.Evaluated | None:
    """How far the evaluator of this job has come; None when it has not begun."""
    try:
        evaluated = outputs.Evaluated.model_validate_json(settings.results.read(outputs.EVALUATION))
    except (OSError, pydantic.ValidationError):
        return None
    same = (evaluated.job_digest, evaluated.job_uid) == (settings.digest, settings.job_uid)
    return evaluated if same else None


def metrics(settings: Settings) -> dict[str, float]:
    """The latest metrics of the job's evaluator with val_ before their names."""
    evaluated = read(settings) if settings.job.evaluator else None
    if evaluated is None:
        return {}
    return {f"val_{name}": float(value) for name, value in evaluated.metrics.items()}


def owed(settings: Settings) -> bool:
    """Whether this process is an evaluator that has not evaluated the last step of training."""
    ended, latest = end_of(settings), read(settings)
    return settings.evaluates and (ended is None or latest is None or latest.step != ended.steps)


def wait_for(
    step: int, settings: Settings, say: Callable[[str], None], moved: Callable[[str], None]
) -> None:
    """Wait until a live evaluator has evaluated a step's checkpoint; `moved` hears of each look."""
    limit = settings.job.trainer.start_timeout_seconds
    began = changed = time.monotonic()
    before = read(settings)
    if before is None or before.step != step:
        say(f"waiting for the evaluator to evaluate step {step}")
    while (evaluated := read(settings)) is None or evaluated.step != step:
        moved("a look for the evaluator's results")
        now = time.monotonic()
        if evaluated != before:
            before, changed = evaluated, now
        if now - changed > _SILENCE_SECONDS or now - began > limit:
            say(
                f"warning: the evaluator has not evaluated step {step} in {now - began:.0f} s, and "
                "the job ends without it: see the evaluator's log"
            )
            return
        time.sleep(_LOOK_EVERY_SECONDS)


_INTERVAL_SECONDS = 5.0


class Status:
    """Writes how far the evaluator has come."""

    def __init__(self, settings: Settings) -> None:
        self._results = settings.results
        self._latest = outputs.Evaluated(
            job_digest=settings.digest, job_uid=settings.job_uid, beat=0
        )
        self._beats = 0
        self._write()

    def beat(self) -> None:
        """Count a piece of work, such as a batch."""
        self._beats += 1
        if time.monotonic() - self._written_at >= _INTERVAL_SECONDS:
            self._write()

    def publish(self, step: int, values: Mapping[str, float]) -> None:
        """Publish the metrics of the checkpoint of a step."""
        numbers = {name: outputs.number(value) for name, value in values.items()}
        self._latest = self._latest.model_copy(update={"step": step, "metrics": numbers})
        self._write()

    def _write(self) -> None:
        self._latest = self._latest.model_copy(update={"beat": self._beats})
        content = self._latest.model_dump_json(by_alias=True)
        self._results.write(outputs.EVALUATION, content.encode())
        self._written_at = time.monotonic()


def has_model(settings: Settings) -> bool:
    """Whether the results have the trained model, which a disk may have lost at a power cut."""
    if isinstance(settings.results, bucket.Bucket):  # an object is there as a whole, or not at all
        return settings.results.has(outputs.MODEL)
    return _opens(settings.output_dir / outputs.MODEL)


def _opens(path: pathlib.Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return bool(archive.namelist())
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError):
        return False


def end_of(settings: Settings) -> outputs.Summary | None:
    """How this very job ended in this output directory; None when it has not."""
    try:
        summary = outputs.Summary.model_validate_json(settings.results.read(outputs.SUMMARY))
    except (OSError, pydantic.ValidationError):
        return None
    return summary if summary.done and summary.job_digest == settings.digest else None
