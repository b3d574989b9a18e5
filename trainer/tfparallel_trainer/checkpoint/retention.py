"""Decides which checkpoints stay: the newest readable ones.

Each is read before an older one is removed.
"""

import contextlib
import enum
import zlib
from collections.abc import Callable, Collection, Iterable

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import entries, files
from tfparallel_trainer.comms import agreement
from tfparallel_trainer.storage import directory

QUARANTINED = 2
"""How many damaged checkpoints are kept for a person to look at."""


class Health(enum.IntEnum):
    """The result of reading a checkpoint, the worst last."""

    WHOLE = 0
    UNREADABLE = 1
    """The storage fails to return all of it, perhaps temporarily."""
    DAMAGED = 2


class Retention:
    """Keeps the newest readable checkpoints of a folder; all processes call its methods alike.

    Each process reads the parts with its number. It does not read a file again until the storage
    reports that it was written.
    """

    def __init__(
        self,
        folder: directory.Directory,
        keep: int,
        peers: agreement.Peers,
        say: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._keep = keep
        self._peers = peers
        self._say = say
        self._verified: set[tuple[str, int]] = set()
        """Fingerprints of the parts' data, and sums of their indexes."""

    def remember(self, draft: directory.Directory, checksum: int) -> None:
        """Count this process's part, whose index has this sum, as read."""
        with contextlib.suppress(OSError):
            self._remember(draft.fingerprint(files.data_file(self._peers.me)), checksum)

    def apply(self, step: int) -> None:
        """Remove the checkpoints below the newest readable ones, which end with that of a step.

        Damaged ones do not count, and are quarantined. Raises StorageError if that of the step is
        not whole, and removes nothing then.
        """
        steps = self._steps()
        if self._peers.gather(len(steps))[0] <= self._keep:
            return
        readable = 0
        while readable < self._keep:
            (oldest, *_) = self._peers.gather(steps.pop() if steps else -1)
            if oldest < 0:
                return
            steps = [step for step in steps if step < oldest]
            health = self._examine_together(oldest)
            if health is Health.WHOLE:
                readable += oldest <= step
            elif oldest == step:
                raise errors.StorageError(
                    f"The checkpoint of step {step} is not whole as soon as it is written; the "
                    f"ones before it stay. See the storage of {self._folder}."
                ).on_every_process()
        if self._peers.is_chief:
            self._remove_below(oldest)

    def quarantine(self, damaged: Iterable[directory.Directory]) -> None:
        """Hide damaged checkpoints, so that none counts as the newest one later."""
        if not self._peers.is_chief:
            return
        for folder in damaged:
            with contextlib.suppress(OSError):
                self._folder.quarantine(folder)

    def same(
        self, step: int, but: Collection[directory.Directory] = ()
    ) -> directory.Directory | None:
        """Return the newest checkpoint of a step, without some of them.

        None: processes see different ones, or none.
        """
        same_step = []
        with contextlib.suppress(OSError):
            same_step = [
                checkpoint
                for checkpoint in entries.of_step(self._folder, step)
                if checkpoint not in but
            ]
        names = self._peers.gather(zlib.crc32(same_step[-1].name.encode()) if same_step else -1)
        return same_step[-1] if same_step and len(set(names)) == 1 else None

    def is_whole(self, folder: directory.Directory) -> bool:
        """Whether this process can read all parts of a checkpoint."""
        return self._examine(folder, first=0, every=1) is Health.WHOLE

    def _examine_together(self, step: int) -> Health:
        """Read the newest checkpoint of a step, and quarantine it if it is damaged."""
        folder = self.same(step)
        if folder is None:
            return Health.UNREADABLE
        health = self._examine(folder, self._peers.me, self._peers.count)
        health = Health(max(self._peers.gather(health)))
        if health is Health.DAMAGED:
            self.quarantine([folder])
        return health

    def _examine(self, folder: directory.Directory, first: int, every: int) -> Health:
        try:
            index = files.read_index(folder)
            for number in range(first, len(index.parts), every):
                fingerprint = folder.fingerprint(files.data_file(number))
                if (fingerprint, index.parts[number]) not in self._verified:
                    files.verify(folder, index.arrays, number)
                    self._remember(fingerprint, index.parts[number])
        except (files.UnreadableError, OSError, errors.BadConfigurationError) as error:
            self._say(f"a checkpoint cannot be read for now: {error}")
            return Health.UNREADABLE
        except files.DamagedError as error:
            self._say(f"a checkpoint is damaged: {error}")
            return Health.DAMAGED
        return Health.WHOLE

    def _remember(self, fingerprint: str | None, checksum: int) -> None:
        if fingerprint is not None:
            self._verified.add((fingerprint, checksum))

    def _steps(self) -> list[int]:
        """The steps of the checkpoints that this process sees. The chief's are decisive."""
        with contextlib.suppress(OSError):
            return sorted(
                {entries.step_of(checkpoint) for checkpoint in entries.checkpoints(self._folder)}
            )
        return []

    def _remove_below(self, step: int) -> None:
        with contextlib.suppress(OSError):
            for checkpoint in entries.checkpoints(self._folder):
                if entries.step_of(checkpoint) < step:
                    self._folder.remove(checkpoint)
            for damaged in self._folder.quarantined()[:-QUARANTINED]:
                self._folder.remove(damaged)
