"""Copies that a process keeps in its agent's memory for another process, its partner's.

They serve when the other process is lost with its agent.
"""

from collections.abc import Sequence

from tfparallel_trainer.checkpoint import memory_file, memory_room
from tfparallel_trainer.comms import agreement, channels, devices


def choose_distance(machines: Sequence[int], holders: Sequence[int]) -> int:
    """Return by how many numbers, in a ring, a process and its partner are apart.

    The partners of as many holders as possible are on another machine. Every process is a partner
    of one process only, so memory and messages are the same everywhere. If several distances serve
    as well, it is the one next to half of the ring: processes of a node have numbers in a row.

    Args:
        machines: a number of the machine of each process; at least two processes.
        holders: the processes that have state.
    """
    count, best, most = len(machines), 0, -1
    for distance in sorted(range(1, count), key=lambda distance: abs(distance - count // 2)):
        apart = sum(machines[holder] != machines[(holder + distance) % count] for holder in holders)
        if apart > most:
            best, most = distance, apart
        if most == len(holders):
            break
    return best


class Partnership:
    """Sends copies of this process to its partner, and keeps those of another process."""

    def __init__(self, files: Sequence[memory_file.MemoryFile], peers: agreement.Peers) -> None:
        """Take two files for copies of another process, or none."""
        self.files = files
        self._peers = peers
        self._outgoing: channels.Channel | None = None
        self._incoming: channels.Channel | None = None
        self._sends_first = False
        self._newest = 0

    def reserve(self, size: int, room: memory_room.Room) -> str:
        """Find the partner of each process, and take memory for the copies of another one.

        All processes call it alike, and none has a partner if one has no room.

        Args:
            size: bytes of a copy of this process; 0 if it has no state.
            room: the memory that this process may take.

        Returns:
            Why this process cannot keep copies; empty if it can.
        """
        peers = self._peers
        sizes = peers.gather(size)
        machines = peers.gather(agreement.digest(devices.machine()))
        holders = [process for process, process_size in enumerate(sizes) if process_size]
        distance = choose_distance(machines, holders)
        source = (peers.me - distance) % peers.count
        obstacle = ""
        if sizes[source]:
            copies = f"copies, those of {peers.names[source]} among them,"
            obstacle = room.take(self.files, sizes[source], copies)
        if peers.failed(not obstacle) is not None:
            for file in self.files:
                file.free()
            return obstacle
        for holder in holders:
            partner = (holder + distance) % peers.count
            channel = peers.open_channel(holder, partner)
            if holder == peers.me:
                self._outgoing = channel
            elif partner == peers.me:
                self._incoming = channel
        self._sends_first = peers.me < (peers.me + distance) % peers.count
        return ""

    def exchange(self, file: memory_file.MemoryFile | None) -> None:
        """Send a complete copy, and receive one; without channels it does nothing.

        Each process does one after the other. In each ring of partners, the process with the
        highest number receives first, so no ring waits for itself.
        """
        if self._sends_first:
            self._send(file)
        if self._incoming is not None:
            self._newest = 1 - self._newest
            self.files[self._newest].receive(self._incoming)
        if not self._sends_first:
            self._send(file)

    def keep(self, file: memory_file.MemoryFile) -> None:
        """Let the next copy be written to the other file."""
        self._newest = self.files.index(file)

    def _send(self, file: memory_file.MemoryFile | None) -> None:
        if self._outgoing is not None and file is not None:
            file.send(self._outgoing)
