"""The dependencies of everything that writes to the cluster."""

import dataclasses
from collections.abc import Callable

from tfparallel_operator import wall_clock
from tfparallel_operator.api_server import client
from tfparallel_operator.core import installation
from tfparallel_operator.engine.observe.children import ChildIndex
from tfparallel_operator.engine.observe.jobs import Jobs
from tfparallel_operator.engine.telemetry.metrics import Metrics
from tfparallel_operator.engine.workqueue import queue
from tfparallel_operator.engine.workqueue.timers import Timers


@dataclasses.dataclass(slots=True)
class Dependencies:
    """Dependencies shared by everything that writes to the cluster."""

    api: client.Client
    jobs: Jobs
    children: ChildIndex
    work: queue.Queue[queue.Key]
    timers: Timers[queue.Key]
    metrics: Metrics
    settings: installation.InstallationSettings
    """The installation's settings for all jobs; a new certificate authority changes them."""
    instance: str
    """Name of this operator in Events."""
    may_write: Callable[[], None]
    """Raises an error if this operator must not write now."""
    clock: wall_clock.Clock = wall_clock.utc_now
    rewinds: Callable[[], int] = lambda: 0
    """Returns how often etcd was restored from an older copy: see `engine.run.history`."""
