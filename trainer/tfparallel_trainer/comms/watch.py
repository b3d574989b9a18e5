"""Notices within seconds that a peer's process has ended.

TensorFlow notices at once only when a message is under way, and otherwise by missed heartbeats
after about ten seconds. A process that has ended no longer listens at its port, so each process
looks whether the next one and the chief still do; a frozen peer or a lost node is left to the
heartbeats.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence

from tfparallel_trainer import errors
from tfparallel_trainer.comms import cluster, tasks

_INTERVAL_SECONDS = 1.0
_PROBE_SECONDS = 2.0


@contextlib.contextmanager
def peers(cluster: tasks.Cluster, give_up: Callable[[errors.TrainerError], None]) -> Iterator[None]:
    """Watch the peers that `watched` names while the body runs."""
    with these(watched(cluster), give_up):
        yield


@contextlib.contextmanager
def these(
    peers: Sequence[tasks.Task], give_up: Callable[[errors.TrainerError], None]
) -> Iterator[None]:
    """Watch some peers while the body runs; `give_up` is called from another thread."""
    over = threading.Event()
    deciding = threading.Lock()

    def lose(peer: tasks.Task) -> None:
        with deciding:
            if not over.is_set():  # after the body, a peer may end
                give_up(
                    errors.PeerLostError(
                        f"A peer was lost: {peer.name} no longer listens at {peer.address}."
                    )
                )

    def look() -> None:
        while not over.wait(_INTERVAL_SECONDS):
            for peer in peers:
                # Twice, because a server that is busy for a moment is no loss.
                if refuses(peer) and not over.wait(_INTERVAL_SECONDS / 2) and refuses(peer):
                    lose(peer)

    if peers:
        threading.Thread(target=look, name="peers", daemon=True).start()
    try:
        yield
    finally:
        with deciding:
            over.set()


def watched(cluster: tasks.Cluster) -> list[tasks.Task]:
    """Whom this process looks at: the next one in a ring, and the chief."""
    following = cluster.tasks[(cluster.me + 1) % len(cluster.tasks)]
    return [peer for peer in dict.fromkeys((following, cluster.tasks[0])) if peer != cluster.task]


def refuses(peer: tasks.Task) -> bool:
    """Whether nobody listens at a peer's port; a node that does not answer is not taken for it."""
    try:
        socket.create_connection(cluster.endpoint(peer), _PROBE_SECONDS).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
