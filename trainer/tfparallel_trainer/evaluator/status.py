"""Publishes how far the evaluator has come, for the chief."""

import time
from collections.abc import Mapping

from tfparallel_trainer.contract import outputs
from tfparallel_trainer.runtime import settings

_INTERVAL_SECONDS = 5.0


class Status:
    """Writes how far the evaluator has come."""

    def __init__(self, settings: settings.Settings) -> None:
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
