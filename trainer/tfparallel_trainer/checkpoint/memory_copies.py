"""Copies of a process's state in memory that the agent owns, so that they outlive the process.

They lie in two files that take turns: while one is written, the other has the copy before. The
partner of the process keeps its copies, too (`partners`). All processes call the methods alike.
"""

import collections
import enum
import mmap
from collections.abc import Callable, Mapping, Sequence

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import (
    files,
    memory_file,
    memory_room,
    partners,
    reading,
    shard,
)
from tfparallel_trainer.comms import agreement

_COUNT_BITS = 32
"""Of a copy's number: it counts copies of its attempt, below the attempt's own number."""

_CopyKey = tuple[int, int]
"""The number of a copy, and the process whose state it is."""


class _Answer(enum.IntEnum):
    """What a process says of its copy."""

    WHOLE = 0
    LACKING = 1
    NO_MEMORY = 2
    """It has none, and no file for one."""


class MemoryCopies:
    """The copies in the memory of this process, of an earlier run or of its own."""

    def __init__(
        self, descriptors: Sequence[int], peers: agreement.Peers, say: Callable[[str], None]
    ) -> None:
        """Take the open files of the agent: none without an agent.

        The first two are for copies of this process, two more for those of another one. `peers`
        are all processes, even if only the chief has state.
        """
        opened = [memory_file.MemoryFile(descriptor) for descriptor in descriptors]
        self._files, self._partnership = opened[:2], partners.Partnership(opened[2:], peers)
        self._peers = peers
        self._say = say
        self._memory: list[mmap.mmap] = []
        self._layout: memory_file.FileLayout | None = None
        self._count = 0
        self._newest = 0
        self._checkpoint_file: int | None = None
        self.source = ""
        """Where `restore` has found the state of all processes."""

    @property
    def is_reserved(self) -> bool:
        """Whether this process can copy its state: `reserve` has succeeded."""
        return self._layout is not None

    @property
    def has_peers(self) -> bool:
        """Whether several processes make copies together."""
        return not self._peers.alone

    def restore(self, state: shard.State | None, oldest: int) -> files.Position | None:
        """Assign the newest copy that all processes can reach, of the step `oldest` or a later one.

        A process takes its own, and otherwise that of its partner. Without a state, it only helps
        others. Copies other than the ones taken are cleared: their steps follow once more.

        Returns:
            Where the copy stands. None: there is none, or no state.
        """
        oldest = max(self._peers.gather(oldest))
        copies = self._find(oldest)
        keepers = self._gather_keepers(copies)
        owners = [
            process
            for process, has_state in enumerate(self._peers.gather(int(state is not None)))
            if has_state
        ]
        lacking: str | None = None
        for number in sorted({number for number, _ in keepers}, reverse=True):
            missing = [process for process in owners if not keepers[number, process]]
            if missing:
                lacking = lacking or self._peers.names[missing[0]]
                continue
            file, failed = self._collect(number, state, copies, keepers)
            if failed is not None:
                lacking = lacking or failed
                continue
            self._clear(number)
            return None if file is None or state is None else _assign(file, state)
        if lacking is not None and self._peers.is_chief:
            self._say(
                f"no copy of {lacking}'s state in memory can be used: the newest checkpoint is read"
            )
        self._clear()
        return None

    def reserve(self, state: shard.State | None) -> bool:
        """Take the memory for copies of a state, before training, or log why there are none.

        Returns whether copies are made, the same on all processes.
        """
        partnership = self._partnership
        room = memory_room.Room([*self._files, *partnership.files])
        obstacle = "" if state is None else self._reserve(state, room)
        if self._peers.failed(not obstacle) is not None:
            self._layout, self._memory = None, []
            for file in (*self._files, *partnership.files):
                file.free()
            if obstacle and self._files:
                self._say(
                    f"warning: the state is not copied in memory, because {obstacle}; a restart "
                    "resumes from the newest checkpoint"
                )
            return False
        if not self._peers.alone:
            size = 0 if self._layout is None else self._layout.end
            obstacle = partnership.reserve(size, room)
            if obstacle and partnership.files:
                self._say(
                    f"warning: no copies are kept for another process, because {obstacle}; if a "
                    "pod is lost, a restart resumes from the newest checkpoint"
                )
        return True

    def copy(self, index: files.Index, *, for_checkpoint: bool = False) -> memory_file.MemoryCopy:
        """Copy the reserved state; the copy before must be sealed.

        Later copies leave one `for_checkpoint` alone until `release`.
        """
        if self._layout is None:
            raise RuntimeError("no memory is reserved for copies")
        other = 1 - self._newest
        file_index = self._newest if other == self._checkpoint_file else other
        self._count += 1
        description = memory_file.Description(
            number=(index.attempt << _COUNT_BITS) + self._count,
            process=self._peers.me,
            index=index,
        )
        copy = memory_file.MemoryCopy(
            self._files[file_index], self._memory[file_index], self._layout, description
        )
        self._newest = file_index
        if for_checkpoint:
            self._checkpoint_file = file_index
        return copy

    def exchange(self) -> None:
        """Send the newest copy, which is sealed, to the partner, and keep that of another process.

        It may run while training continues. The partner has the copy once it has returned there,
        too, and that must be so before the next copy.
        """
        self._partnership.exchange(self._files[self._newest] if self.is_reserved else None)

    def release(self) -> None:
        """Let later copies overwrite the one that was held."""
        self._checkpoint_file = None

    def _find(self, oldest: int) -> dict[_CopyKey, memory_file.MemoryFile]:
        """Return the files that have complete copies."""
        copies = {}
        for file in (*self._files, *self._partnership.files):
            description = file.read()
            if description is not None and description.index.position.step >= oldest:
                copies[description.number, description.process] = file
        return copies

    def _gather_keepers(
        self, copies: Mapping[_CopyKey, memory_file.MemoryFile]
    ) -> Mapping[_CopyKey, list[int]]:
        """Return the processes that have a copy, by its key, the same on all processes."""
        keepers = collections.defaultdict[_CopyKey, list[int]](list)
        keys = list(copies)
        for index in range(max(self._peers.gather(len(keys)))):
            number, process = keys[index] if index < len(keys) else (-1, -1)
            numbers, owners = self._peers.gather(number), self._peers.gather(process)
            for keeper, key in enumerate(zip(numbers, owners, strict=True)):
                if key != (-1, -1):
                    keepers[key].append(keeper)
        return keepers

    def _collect(
        self,
        number: int,
        state: shard.State | None,
        copies: Mapping[_CopyKey, memory_file.MemoryFile],
        keepers: Mapping[_CopyKey, Sequence[int]],
    ) -> tuple[memory_file.MemoryFile | None, str | None]:
        """Let each process that lacks a whole copy with a number receive it from another one.

        Returns:
            The file of this process that has its copy, and the first process without a copy.
        """
        me, names = self._peers.me, self._peers.names
        file = copies.get((number, me))
        is_whole = state is None or self._is_whole(file, number, state)
        lacks = _Answer.LACKING if self._files else _Answer.NO_MEMORY
        answers = self._peers.gather(_Answer.WHOLE if is_whole else lacks)
        received = []
        for process, answer in enumerate(answers):
            if answer == _Answer.WHOLE:
                continue
            others = [keeper for keeper in keepers[number, process] if keeper != process]
            if not others or answer == _Answer.NO_MEMORY:
                return None, names[process]
            channel = self._peers.open_channel(others[0], process)
            received.append(f"{names[others[0]]} kept the copy of {names[process]}")
            if channel is None:
                continue
            if me == process:
                file = self._find_target(number)
                file.receive(channel)
                is_whole = state is None or self._is_whole(file, number, state)
            else:
                copies[number, process].send(channel)
        self.source = f"memory ({'; '.join(received)})" if received else "memory"
        return file, self._peers.failed(is_whole) if received else None

    def _is_whole(
        self, file: memory_file.MemoryFile | None, number: int, state: shard.State
    ) -> bool:
        """Whether a file has an undamaged copy with a number, and all that this process needs."""
        description = None if file is None else file.read()
        if file is None or description is None or description.number != number:
            return False
        index = description.full_index
        try:
            reading.check(file, index, {key: state.wholes[key] for key, _ in state.each()})
            reading.verify(file, index, state)
        except errors.BadConfigurationError:
            problem = "it holds other variables"
        except files.DamagedError as error:
            problem = str(error)
        else:
            return True
        self._say(f"skipping the copy of step {index.position.step} in memory: {problem}")
        return False

    def _find_target(self, number: int) -> memory_file.MemoryFile:
        """The file for a copy from another process: it has none, a damaged one or an older one."""

        def age(file: memory_file.MemoryFile) -> int:
            description = file.read()
            return -1 if description is None or description.number == number else description.number

        return min(self._files, key=age)

    def _clear(self, but: int | None = None) -> None:
        """Clear all copies, but those with a number. Later copies go to the other files."""
        for file in (*self._files, *self._partnership.files):
            description = file.read()
            if description is None or description.number != but:
                file.clear()
            elif file in self._files:
                self._newest = self._files.index(file)
            else:
                self._partnership.keep(file)

    def _reserve(self, state: shard.State, room: memory_room.Room) -> str:
        """Return why no copies can be made; empty if they can."""
        try:
            layout = memory_file.FileLayout(state)
        except ValueError as error:
            return f"ranks of this process have overlapping parts of a variable ({error})"
        obstacle = room.take(self._files, layout.end, "two copies")
        if not obstacle:
            self._memory = [file.map(layout.end) for file in self._files]
            self._layout = layout
        return obstacle


def _assign(file: memory_file.MemoryFile, state: shard.State) -> files.Position:
    """Assign a verified copy to the variables; return where it stands."""
    description = file.read()
    if description is None:
        raise errors.StorageError(f"{file} was whole and is now damaged")
    index = description.full_index
    reading.assign(file, index, state)
    return index.position
