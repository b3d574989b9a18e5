"""The workers, which take jobs from the queue and reconcile them."""

import asyncio
import logging
import math
import time

from tfparallel_operator.api import load
from tfparallel_operator.api_server import errors
from tfparallel_operator.engine.observe.job_memory import JobMemories
from tfparallel_operator.engine.run import reconcile
from tfparallel_operator.engine.telemetry import logs, metrics
from tfparallel_operator.engine.workqueue import queue, timers
from tfparallel_operator.engine.write import dependencies

_LOG = logging.getLogger(__name__)

CONFLICT_SECONDS = 0.05
"""Pause before a job that changed during its reconcile is reconciled again."""


class Workers:
    """Reconciles the keys of the queue, and pauses a job after failures."""

    def __init__(self, engine: dependencies.Dependencies) -> None:
        self._queue = engine.work
        self._timers = engine.timers
        self._metrics = engine.metrics
        self._memories = JobMemories()
        self._reconciler = reconcile.Reconciler(engine, self._memories)

    async def run(self) -> None:
        """Reconcile until cancelled. Several of these may run at the same time."""
        while True:
            key = await self._queue.get()
            begun = time.perf_counter()
            about = {"namespace": key.namespace, "job": key.name}
            served = started = False
            try:
                with logs.about(**about, reconcile=logs.new_reconcile()):
                    outcome = await self._look_at(key)
                self._metrics.reconciled(outcome, time.perf_counter() - begun)
                served = outcome not in metrics.UNSERVED
                started = outcome is metrics.ReconcileResult.STARTED
            finally:  # The first status of a new job has time until other jobs have their pods.
                self._queue.done(key, served=served, low_priority=started)
            await asyncio.sleep(0)  # A look with nothing to write has not waited.

    async def _look_at(self, key: queue.Key) -> metrics.ReconcileResult:
        try:
            outcome = await self._reconciler.reconcile(key)
        except errors.Conflict:
            self._timers.after(key, CONFLICT_SECONDS)
            return metrics.ReconcileResult.CONFLICT
        except load.StatusError as error:
            pause = self._count_failure(key)
            _LOG.error("the job is left alone: %s; again in %.0f s", error, pause)
            self._timers.after(key, pause)
            return metrics.ReconcileResult.ERROR
        except errors.ApiError as error:
            is_unanswered = isinstance(error, errors.Unavailable)
            longest = (
                reconcile.UNANSWERED_SECONDS if is_unanswered else timers.LONGEST_PAUSE_SECONDS
            )
            pause = max(self._count_failure(key, longest), error.retry_after or 0.0)
            _LOG.warning("%s; again in %.0f s", error, pause)
            self._timers.after(key, pause)
            refused = isinstance(error, errors.Refused)
            return metrics.ReconcileResult.REFUSED if refused else metrics.ReconcileResult.ERROR
        except Exception:
            # A bug that one job meets must not stop the others.
            pause = self._count_failure(key)
            _LOG.exception("unexpected error; again in %.0f s", pause)
            self._timers.after(key, pause)
            return metrics.ReconcileResult.BUG
        if outcome.refusal is not None:
            _LOG.info("refused for now: %s", outcome.refusal.message)
            blocked = metrics.ReconcileResult.BLOCKED
            return blocked if outcome.is_blocked else metrics.ReconcileResult.REFUSED
        return metrics.ReconcileResult.STARTED if outcome.started else metrics.ReconcileResult.DONE

    def _count_failure(self, key: queue.Key, longest: float = math.inf) -> float:
        """Return for how many seconds to leave a job alone."""
        return self._memories.recall(key).backoff.count_failure(longest)
