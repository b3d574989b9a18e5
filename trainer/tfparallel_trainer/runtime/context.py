"""What every part of a run works with: settings, the user's module, and this process."""

import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping

from tfparallel_trainer import errors, user
from tfparallel_trainer.comms import agreement, devices, rendezvous, shape
from tfparallel_trainer.runtime import settings
from tfparallel_trainer.runtime.lifecycle import stall, termination
from tfparallel_trainer.runtime.reporting import console

_generations = itertools.count()
"""Of the meshes of this process; a script may train several times."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """A run as this process sees it."""

    settings: settings.Settings
    module: user.Module
    out: console.Console
    stop: termination.Termination
    give_up: Callable[[errors.TrainerError], None]
    """Ends the process from any thread."""
    watch: stall.Watch
    """Takes this process's signs of life."""
    started: float
    """time.monotonic() at the start of the process."""
    devices: int | None = None
    """How many devices this process has, where it has joined its peers before."""
    script: bool = False
    """Whether the user's script calls, which keeps the trained model itself."""
    logs: bool = True
    """Whether the chief writes records into the output directory."""
    facts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """What else must be the same in all processes."""

    def count_devices(self) -> int:
        """How many devices this process has; they are configured unless it has joined its peers."""
        settings = self.settings
        return self.devices or devices.prepare(settings.cpu_devices, settings.cluster.alone)

    def mesh(self, **axes: int) -> shape.Mesh:
        """The mesh of a run, with ranks by axis."""
        return shape.Mesh(**axes, generation=next(_generations))

    @contextlib.contextmanager
    def joined(self, count: int) -> Iterator[list[str]]:
        """Find the peers, start TensorFlow's cluster with them, and give the names of the devices.

        The processes are one cluster until the body ends.
        """
        cluster, handle = self.settings.cluster, None
        if not self.devices and not cluster.alone:
            limit = self.settings.job.trainer.start_timeout_seconds
            with self.watch.waiting():
                connections = rendezvous.meet(cluster, limit, self.out.say)
                handle = rendezvous.join(cluster, connections)
        self.stop.install()  # TensorFlow takes SIGTERM when it starts a cluster
        names = devices.names(cluster, count)
        self.compare(names[0], count)
        yield names
        del handle  # what holds the cluster

    def compare(self, device: str, count: int) -> None:
        """Refuse (BadConfigurationError) a run in which a process is started otherwise."""
        path = self.module.path
        source = hashlib.sha256(path.read_bytes() if path.is_file() else b"").hexdigest()
        job = "the arguments of fit" if self.script else "the job file"
        facts = {
            "the number of devices": count,
            job: _number(self.settings.digest),
            f"the content of {path.name}": _number(source),
            **self.facts,
        }
        with self.watch.waiting():  # a script may do what it likes before it comes here
            agreement.check(self.settings.cluster, device, facts)


def _number(digest: str) -> int:
    """Of the hexadecimal digits of a digest, as many as processes compare."""
    return int(digest[:15], 16)
