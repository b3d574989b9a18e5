"""How processes that run collectives become one cluster, and see that they are started alike."""

import contextlib
import hashlib
import itertools
from collections.abc import Iterator

from tfparallel_trainer.comms import agreement, devices, rendezvous
from tfparallel_trainer.runtime import context

generations = itertools.count()
"""Of the meshes of this process; a script may train several times."""


def count_devices(context: context.RunContext) -> int:
    """How many devices this process has; they are configured unless it has joined its peers."""
    settings = context.settings
    return context.devices or devices.prepare(settings.cpu_devices, settings.cluster.alone)


@contextlib.contextmanager
def joined(context: context.RunContext, count: int) -> Iterator[list[str]]:
    """Find the peers, start TensorFlow's cluster with them, and give the names of the devices.

    The processes are one cluster until the body ends.

    Raises:
        BadConfigurationError: one process differs from the first.
    """
    settings = context.settings
    handle = None
    if not context.devices and not settings.cluster.alone:
        limit = settings.job.trainer.start_timeout_seconds
        with context.watch.waiting():
            connections = rendezvous.meet(settings.cluster, limit, context.out.say)
            handle = rendezvous.join(settings.cluster, connections)
    context.stop.install()  # TensorFlow takes SIGTERM when it starts a cluster
    names = devices.names(settings.cluster, count)
    compare(context, names[0], count)
    yield names
    del handle  # what holds the cluster


def compare(context: context.RunContext, device: str, count: int) -> None:
    """See that all processes are started alike.

    Raises:
        BadConfigurationError: one differs from the first.
    """
    path, digest = context.module.path, context.settings.digest
    source = hashlib.sha256(path.read_bytes() if path.is_file() else b"").hexdigest()
    facts = {
        "the number of devices": count,
        "the arguments of fit" if context.script else "the job file": _number(digest),
        f"the content of {path.name}": _number(source),
        **context.facts,
    }
    with context.watch.waiting():  # a script may do what it likes before it comes here
        agreement.check(context.settings.cluster, device, facts)


def _number(digest: str) -> int:
    """Of the hexadecimal digits of a digest, as many as processes compare."""
    return int(digest[:15], 16)
