"""Copies of a process's state in memory that the agent owns, so that they outlive the process.

They lie in two files that take turns: while one is written, the other has the copy before. All
processes that have parts of the state call the methods alike.
"""

import mmap
from collections.abc import Callable, Sequence

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import files, memory_file, reading, shard
from tfparallel_trainer.comms import agreement, devices
from tfparallel_trainer.contract import progress

_MEMORY_SHARE = 0.25
"""Share of the free memory before the first step that copies may take. Steps need the rest."""

_COUNT_BITS = 32
"""Of a copy's number: it counts copies of its attempt, below the attempt's own number."""


class MemoryCopies:
    """The copies of this process, of an earlier run or of its own."""

    def __init__(
        self, descriptors: Sequence[int], peers: agreement.Peers, say: Callable[[str], None]
    ) -> None:
        """Take the open files of the agent: two, or none without an agent."""
        self._files = [memory_file.MemoryFile(descriptor) for descriptor in descriptors]
        self._peers = peers
        self._say = say
        self._memory: list[mmap.mmap] = []
        self._layout: memory_file.FileLayout | None = None
        self._count = 0
        self._newest = 0
        self._checkpoint_file: int | None = None

    @property
    def is_reserved(self) -> bool:
        """Whether copies can be made: `reserve` has succeeded."""
        return self._layout is not None

    def restore(self, state: shard.State, oldest: int) -> files.Position | None:
        """Assign the newest copy that all processes have, of the step `oldest` or a later one.

        None: there is none. Other copies are cleared: their steps follow once more.
        """
        copies = self._find(oldest)
        numbers = sorted(copies)
        while True:
            newest = self._peers.gather(numbers[-1] if numbers else -1)
            number = min(newest)
            if number < 0:
                break
            if number < max(newest):
                numbers = [candidate for candidate in numbers if candidate <= number]
                continue
            file, index = copies[number]
            if self._peers.failed(self._is_whole(file, index, state)) is None:
                self._clear(but=file)
                reading.assign(file, index, state)
                return index.position
            numbers.pop()
        if max(newest) >= 0 and self._peers.is_chief:
            name = self._peers.names[newest.index(number)]
            self._say(f"{name} has no copy of its state in memory: the newest checkpoint is read")
        self._clear()
        return None

    def reserve(self, state: shard.State) -> bool:
        """Take the memory for copies of a state, before training, or log why there are none."""
        obstacle = self._reserve(state)
        if self._peers.failed(not obstacle) is None:
            return True
        self._layout, self._memory = None, []
        for file in self._files:
            file.free()
        if obstacle and self._files:
            self._say(
                f"warning: the state is not copied in memory, because {obstacle}; a restart "
                "resumes from the newest checkpoint"
            )
        return False

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
            number=(index.attempt << _COUNT_BITS) + self._count, index=index
        )
        copy = memory_file.MemoryCopy(
            self._files[file_index], self._memory[file_index], self._layout, description
        )
        self._newest = file_index
        if for_checkpoint:
            self._checkpoint_file = file_index
        return copy

    def release(self) -> None:
        """Let later copies overwrite the one that was held."""
        self._checkpoint_file = None

    def _find(self, oldest: int) -> dict[int, tuple[memory_file.MemoryFile, files.Index]]:
        """Return the complete copies by their numbers."""
        copies = {}
        for file in self._files:
            description = file.read()
            if description is not None and description.index.position.step >= oldest:
                copies[description.number] = file, description.full_index
        return copies

    def _is_whole(
        self, file: memory_file.MemoryFile, index: files.Index, state: shard.State
    ) -> bool:
        """Whether a copy is undamaged and has all that this process needs."""
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

    def _clear(self, but: memory_file.MemoryFile | None = None) -> None:
        for file_index, file in enumerate(self._files):
            if file is but:
                self._newest = file_index
            else:
                file.clear()

    def _reserve(self, state: shard.State) -> str:
        """Return why no copies can be made; empty if they can."""
        if not self._files:
            return "no agent has started this process"
        try:
            layout = memory_file.FileLayout(state)
        except ValueError as error:
            return f"ranks of this process have overlapping parts of a variable ({error})"
        needed, free = len(self._files) * layout.end, devices.free_bytes()
        if needed - sum(file.size for file in self._files) > _MEMORY_SHARE * free:
            return (
                f"two copies take {progress.format_bytes(needed)}, and {_MEMORY_SHARE:.0%} of the "
                f"free memory are {progress.format_bytes(_MEMORY_SHARE * free)}"
            )
        try:
            self._memory = [file.map(layout.end) for file in self._files]
        except OSError as error:
            return f"two copies take {progress.format_bytes(needed)} ({error.strerror})"
        self._layout = layout
        return ""
