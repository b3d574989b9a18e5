"""The memory that copies of the state may take: a part of what is free before the first step."""

from collections.abc import Sequence

from tfparallel_trainer.checkpoint import memory_file
from tfparallel_trainer.comms import devices
from tfparallel_trainer.contract import progress

_SHARE = 0.25
"""Share of the free memory that copies may take. Steps need the rest."""


class Room:
    """Counts what the files of a process take."""

    def __init__(self, files: Sequence[memory_file.MemoryFile]) -> None:
        """Look at the free memory now; memory that the files have counts as theirs."""
        self._limit = _SHARE * devices.free_bytes()
        self._owned = sum(file.size for file in files)
        self._needed = 0

    def take(self, files: Sequence[memory_file.MemoryFile], size: int, copies: str) -> str:
        """Take so many bytes for each file, or return why that cannot be; `copies` names them."""
        if not files:
            return "no agent has started this process"
        self._needed += len(files) * size
        takes = f"{copies} take {progress.format_bytes(self._needed)}"
        if self._needed - self._owned > self._limit:
            return (
                f"{takes}, and {_SHARE:.0%} of the free memory are "
                f"{progress.format_bytes(self._limit)}"
            )
        try:
            for file in files:
                file.reserve(size)
        except OSError as error:
            return f"{takes} ({error.strerror})"
        return ""
