"""Pushes progress to whoever asked for it, from a thread that training never waits for."""

import http.client
import math
import threading
import time
import urllib.error
from collections.abc import Callable

from tfparallel_trainer import process_settings
from tfparallel_trainer.contract import limits, progress
from tfparallel_trainer.reporting import posting

END_SECONDS = 2.0
"""What a run that was asked to end, or has failed, gives its last report."""

PATIENT_SECONDS = 10.0
"""What a run that has come to its end gives its last report, with as many tries as fit in."""

_REQUEST_SECONDS = 5.0
_AGAIN_SECONDS = 0.5

_TOO_SOON = http.HTTPStatus.TOO_MANY_REQUESTS
"""The answer to a report that follows another one too soon: it is sent again, without a word."""

_FINAL = frozenset(range(400, 500)) - {_TOO_SOON}
"""Answers that another try would not change."""


class Pusher:
    """Sends the latest report; older ones that were not sent yet are dropped.

    Between two reports the interval passes, except before the last one. A line for people reports
    each change between success and failure. Without a target it sends none.
    """

    def __init__(
        self, target: process_settings.ProgressTarget | None, say: Callable[[str], None]
    ) -> None:
        self._say = say
        self._latest: progress.Report | None = None
        self._until = math.inf
        """When sending ends, by time.monotonic(), once that is known."""
        self._changed = threading.Condition()
        self._working = True
        self._thread = threading.Thread(
            target=self._run, args=(target,), name="progress", daemon=True
        )
        if target is not None:
            self._thread.start()

    def put(self, report: progress.Report) -> None:
        """Make a report the latest; returns at once."""
        with self._changed:
            self._latest = report
            self._changed.notify()

    def close(self, seconds: float = END_SECONDS) -> None:
        """Send the latest report and stop, within the given seconds."""
        with self._changed:
            self._until = time.monotonic() + seconds
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(seconds)

    @property
    def _ending(self) -> bool:
        return self._until < math.inf

    @property
    def _left(self) -> float:
        """Seconds until sending ends."""
        return self._until - time.monotonic()

    def _run(self, target: process_settings.ProgressTarget) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._latest is not None or self._ending)
                report, self._latest = self._latest, None
            if report is None:
                return
            settled = self._push(target, report)
            with self._changed:
                if not settled:
                    self._latest = self._latest or report  # later, unless there is a newer one
                if not self._ending:
                    self._changed.wait_for(lambda: self._ending, target.interval_seconds)
                    continue
            if not settled and self._left < _AGAIN_SECONDS:
                return
            if not settled:
                time.sleep(_AGAIN_SECONDS)

    def _push(self, target: process_settings.ProgressTarget, report: progress.Report) -> bool:
        """Send a report; whether it was taken, or never will be."""
        try:
            posting.post(target, _body(report), max(0.1, min(_REQUEST_SECONDS, self._left)))
        except (OSError, ValueError, http.client.HTTPException) as error:
            status = error.code if isinstance(error, urllib.error.HTTPError) else None
            if status != _TOO_SOON:
                if self._working:
                    self._say(f"progress is not reported for now ({error}); training continues")
                self._working = False
            return status in _FINAL
        if not self._working:
            self._say("progress is reported again")
        self._working = True
        return True


def _body(report: progress.Report) -> bytes:
    """Write a report; one that is too long goes without its placement, then without metrics."""
    shorter = report.model_copy(update={"placement": None})
    for candidate in (report, shorter, shorter.model_copy(update={"metrics": {}})):
        body = candidate.model_dump_json(by_alias=True, exclude_none=True).encode()
        if len(body) <= limits.MAX_BODY_BYTES:
            break
    return body
