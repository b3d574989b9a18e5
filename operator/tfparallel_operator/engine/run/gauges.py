"""Gauges for Prometheus, which read the engine's state at each request."""

import collections
import time
from collections.abc import Callable, Iterator

from prometheus_client import core, registry

from tfparallel_operator.api import names
from tfparallel_operator.engine.observe import children, jobs
from tfparallel_operator.engine.workqueue import queue


class Gauges(registry.Collector):
    """The gauges of one engine."""

    def __init__(
        self,
        job_store: jobs.Jobs,
        work: queue.Queue[queue.Key],
        job_children: children.ChildIndex,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs = job_store
        self._queue = work
        self._children = job_children
        self._clock = clock

    def collect(self) -> Iterator[core.Metric]:
        """Read everything."""
        acts = self._queue.opened
        yield core.GaugeMetricFamily(
            "tfparallel_leader", "1: this operator acts; 0: it stands by.", float(acts)
        )
        if acts:  # Each job is shown once, however many operators know it.
            states = collections.Counter(self._jobs.states())
            gauge = core.GaugeMetricFamily("tfparallel_jobs", "Jobs by state.", labels=["state"])
            for state in names.State:
                gauge.add_metric([state.value], states[state.value])
            yield gauge
            yield core.GaugeMetricFamily(
                "tfparallel_jobs_beyond_limits",
                "Jobs whose spec or status is larger, deeper or stranger than the operator reads.",
                self._jobs.count_beyond_limits(),
            )
        yield core.GaugeMetricFamily(
            "tfparallel_queue_depth",
            "Jobs that wait to be looked at, or are looked at.",
            len(self._queue),
        )
        yield core.GaugeMetricFamily(
            "tfparallel_queue_age_seconds",
            "How long the oldest of them has waited or been looked at.",
            self._queue.oldest(),
        )
        silence = {**self._children.silences(self._clock()), names.PLURAL: self._jobs.silence()}
        ages = core.GaugeMetricFamily(
            "tfparallel_watch_age_seconds",
            "Since the watch last heard or tried anything.",
            labels=["resource"],
        )
        for resource, seconds in silence.items():
            ages.add_metric([resource], seconds)
        yield ages
