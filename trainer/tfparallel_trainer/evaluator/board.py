"""The evaluator's end of what passes between it and the chief."""

import time
from collections.abc import Mapping

from tfparallel_trainer import settings
from tfparallel_trainer.contract import outputs

_INTERVAL_SECONDS = 5.0


class Board:
    """Writes how far the evaluator has come."""

    def __init__(self, settings: settings.Settings) -> None:
        self._results = settings.results
        self._latest = outputs.Evaluated(
            job_digest=settings.digest, job_uid=settings.job_uid, beat=0
        )
        self._beat = 0
        self._write()

    def work(self) -> None:
        """Tell that a piece of work is done, such as a batch."""
        self._beat += 1
        if time.monotonic() - self._written_at >= _INTERVAL_SECONDS:
            self._write()

    def post(self, step: int, values: Mapping[str, float]) -> None:
        """Tell what was found for the checkpoint of a step."""
        numbers = {name: outputs.number(value) for name, value in values.items()}
        self._latest = self._latest.model_copy(update={"step": step, "metrics": numbers})
        self._write()

    def _write(self) -> None:
        self._latest = self._latest.model_copy(update={"beat": self._beat})
        content = self._latest.model_dump_json(by_alias=True)
        self._results.write(outputs.EVALUATION, content.encode())
        self._written_at = time.monotonic()
