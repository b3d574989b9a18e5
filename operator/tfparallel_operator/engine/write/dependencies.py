"""What the parts that act on jobs share."""

import dataclasses
from collections.abc import Callable

from tfparallel_operator import wall_clock
from tfparallel_operator.api_server import client
from tfparallel_operator.core import installation
from tfparallel_operator.engine.observe.children import Children
from tfparallel_operator.engine.observe.jobs import Jobs
from tfparallel_operator.engine.telemetry.metrics import Metrics
from tfparallel_operator.engine.workqueue import queue
from tfparallel_operator.engine.workqueue.timers import Timers


@dataclasses.dataclass(slots=True)
class Dependencies:
    """The cluster as it was last seen, the ways to act on it, and the leave to do so."""

    api: client.Client
    jobs: Jobs
    children: Children
    work: queue.Queue[queue.Key]
    timers: Timers[queue.Key]
    metrics: Metrics
    settings: installation.Settings
    """What the installation decides for every job; a new certificate authority changes it."""
    instance: str
    """Name of this operator in Events."""
    may_write: Callable[[], None]
    """Raises an error unless this operator may write at this moment."""
    clock: wall_clock.Clock = wall_clock.utc_now
    rewinds: Callable[[], int] = lambda: 0
    """Returns how often the API server's history has gone back: see `engine.run.history`."""
