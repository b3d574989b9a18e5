"""The checkpoints of a job: newest first, the oldest removed, writers of old attempts kept out.

Each process that holds variables writes a part. The chief, which owns the folder (`owner`),
publishes a checkpoint once all parts exist. A single process is its own chief.
"""

import contextlib
import dataclasses
import errno
import functools
from collections.abc import Callable

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import (
    entries,
    files,
    memory_copies,
    owner,
    reading,
    retention,
    shard,
)
from tfparallel_trainer.comms import agreement
from tfparallel_trainer.contract import outputs
from tfparallel_trainer.lifecycle import error_classes
from tfparallel_trainer.storage import directory

_SHARED_BITS = 60
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointCopy:
    """A copy of the state, from which a checkpoint is written."""

    save: Callable[[], None]
    """Writes the checkpoint; it raises as `Store.save` does."""
    complete: Callable[[], None] | None = None
    """Completes the copy, as `Store.copy_in_memory` says. None: it ends with this process."""


class Store:
    """The directory of a job's checkpoints."""

    def __init__(
        self,
        folder: directory.Directory,
        keep: int,
        job: str,
        attempt: int | None,
        say: Callable[[str], None],
        together: agreement.Peers | None = None,
        namespace: str = "",
        module_sum: str = "",
        memory: memory_copies.MemoryCopies | None = None,
    ) -> None:
        """Take the folder for an attempt at the job of this uid; None takes the next number.

        `together` are the processes that each hold a part; absent: this one holds all. The
        `namespace` is the job's, because jobs of another one may use the same bucket. The
        `module_sum` is the SHA-256 of the user's module; absent: changes of the module are not
        logged. `memory` has copies that outlive this process; absent: there are none.

        Raises:
            PreemptedError: a newer attempt has already taken it.
            BadConfigurationError: the folder cannot be written to, is not shared by all processes,
                or belongs to another live job.
            PeerLostError: the chief could not take it.
        """
        self._folder = folder
        self._keep = keep
        self._say = say
        self._peers = together or agreement.Peers()
        self._saves = 0
        self._module_sum = module_sum
        self._copy: shard.State | None = None
        self._memory = memory or memory_copies.MemoryCopies((), agreement.Peers(), say)
        self.saved_step = 0
        """Step of the newest checkpoint that `restore` has seen; 0 without one."""
        self.source = str(folder)
        """Where `restore` has found the state."""
        self._retention = retention.Retention(folder, keep, self._peers, say)
        if self._peers.is_chief:
            self._owner = self._take(job, attempt, namespace)
        if not self._peers.alone:
            self._owner = self._shared()

    @property
    def attempt(self) -> int:
        """Number of the attempt, from 1."""
        return self._owner.attempt

    def living(self) -> contextlib.AbstractContextManager[None]:
        """Keep other jobs from taking the folder while the body runs."""
        if not self._peers.is_chief:
            return contextlib.nullcontext()
        return owner.living(self._folder, self._owner)

    @property
    def has_parts(self) -> bool:
        """Whether other processes write parts of its checkpoints, too."""
        return not self._peers.alone

    def check_owner(self) -> None:
        """Raise PreemptedError if another process has taken the folder, on the chief."""
        if self._peers.is_chief:
            owner.check(self._folder, self._owner)

    def copy(self, state: shard.State, at: files.Position) -> CheckpointCopy:
        """Copy a state in order to save it; the copy before must be saved."""
        if not self._memory.is_reserved:
            self._copy = shard.copied(state, self._copy)
            return CheckpointCopy(functools.partial(self.save, self._copy, at))
        copy = self._memory.copy(self._describe(at), for_checkpoint=True)

        def save() -> None:
            try:
                self.save(copy.state, at)
            finally:
                self._memory.release()

        return CheckpointCopy(save, copy.seal)

    def copy_in_memory(self, at: files.Position) -> Callable[[], None]:
        """Copy the state for which memory is reserved; returns a function that completes the copy.

        The function may run while training continues, and must have returned before the next copy,
        or before the copy is sent to the partner.
        """
        return self._memory.copy(self._describe(at)).seal

    def _describe(self, at: files.Position) -> files.Index:
        return files.Index(attempt=self.attempt, position=at, parts=())

    def save(self, state: shard.State, at: files.Position) -> None:
        """Save all variables as the checkpoint of a step, and remove the oldest beyond `keep`.

        Raises:
            PreemptedError: another attempt has taken the folder.
            StorageError: the storage fails; earlier checkpoints stay as they are.
            PeerLostError: another process could not write its part.
        """
        if self._peers.alone and self._has_intact(at.step):
            return
        self._saves += (
            1  # a save never writes where an earlier save of this step may have left files
        )
        writer = f"{self.attempt:06}-{self._owner.process}-{self._saves}"
        draft = self._folder.draft(entries.name(at.step), writer)
        self._together(at, lambda: self._write_part(draft, state))
        self._together(at, lambda: self._finish(draft, at, state))
        if self._saves == 1:
            self._note_module()
        self._retention.apply(at.step)

    def _together(self, at: files.Position, work: Callable[[], None]) -> None:
        """Do a part of saving on each process, and wait until all have succeeded."""
        error: Exception | None = None
        try:
            work()
        except (OSError, files.DamagedError, errors.TrainerError) as raised:
            error = raised
        failed = self._peers.failed(error is None)
        if isinstance(error, errors.TrainerError):
            raise error
        if failed is not None and self._peers.is_chief:
            with contextlib.suppress(OSError):  # they may fill the disk
                self._remove_drafts()
                if isinstance(error, OSError) and error.errno in _FULL:
                    for damaged in self._folder.quarantined():
                        self._folder.remove(damaged)
        if error is not None:
            raise errors.StorageError(
                f"The checkpoint of step {at.step} cannot be written ({error}). "
                f"{self._last_good()}; see the space and the permissions of {self._folder}, which "
                f"needs room for {self._keep + 1} (trainer.checkpoint.keep + 1)."
            ) from error
        if failed is not None:
            raise errors.PeerLostError(
                f"The checkpoint of step {at.step} is not written, because {failed} could not do "
                f"its part; its log says why. {self._last_good()}."
            )

    def _last_good(self) -> str:
        try:
            kept = entries.checkpoints(self._folder)
        except OSError:
            return f"{self._folder} does not say which one is the last good one"
        if not kept:
            return "There is none before"
        return f"{entries.name(entries.step_of(kept[-1]))} is the last good one"

    def _write_part(self, draft: directory.Directory, state: shard.State) -> None:
        owner.check(self._folder, self._owner)
        if self._peers.is_chief:
            self._remove_drafts(but=draft)
        checksum = files.write_part(draft, self._peers.me, state)
        self._retention.remember(draft, checksum)

    def _finish(self, draft: directory.Directory, at: files.Position, state: shard.State) -> None:
        """Publish the checkpoint that all processes have written."""
        if not self._peers.is_chief:
            return
        index = files.complete(draft, self._peers.count, self.attempt, at, state.wholes)
        owner.check(self._folder, self._owner)
        if self._has_intact(at.step):
            self._folder.remove(draft)
            return
        for damaged in entries.of_step(self._folder, at.step):
            self._folder.quarantine(damaged)
        self._folder.publish(draft, entries.name(at.step), index)

    def restore(self, state: shard.State) -> files.Position | None:
        """Assign the newest whole state to the variables; None when there is none.

        It is that of a copy in memory, if all processes can reach one which is as new as the newest
        checkpoint. Otherwise it is that of a checkpoint, which may have been saved under any mesh.
        Each process reads only the parts of its ranks. Newer checkpoints that are damaged are
        quarantined.

        Raises:
            BadConfigurationError: it is one of another model.
            StorageError: it changed while it was read, or the storage does not give any.
        """
        steps = [entries.step_of(folder) for folder in entries.checkpoints(self._folder)]
        (self.saved_step, *_) = self._peers.gather(steps[-1] if steps else 0)
        position = self._memory.restore(state, oldest=self.saved_step)
        if position is not None:
            self.source = self._memory.source
            self._compare_module()
            return position
        passed: list[tuple[directory.Directory, retention.Health]] = []
        while True:
            (step, *_) = self._peers.gather(steps[-1] if steps else -1)
            if step < 0:
                break
            folder = self._retention.same(step, but=[folder for folder, _ in passed])
            if folder is None:  # no other writer has saved this step
                steps = [candidate for candidate in steps if candidate < step]
                continue
            index, health = self._verified(folder, state)
            if index is None:
                passed.append((folder, health))
                continue
            reading.assign(folder, index, state)
            self._retention.quarantine(folder for folder, _ in passed)
            self._compare_module()
            self.saved_step = step
            return index.position
        if any(health is retention.Health.UNREADABLE for _, health in passed):
            raise errors.StorageError(
                f"No checkpoint in {self._folder} can be read for now. See the storage, or remove "
                "them to begin from step 0."
            ).on_every_process()
        self._retention.quarantine(folder for folder, _ in passed)
        self.saved_step = 0
        return None

    def _note_module(self) -> None:
        """Write the sum of the module that has saved a checkpoint."""
        if self._peers.is_chief and self._module_sum:
            with contextlib.suppress(OSError):  # it is for a note alone
                self._folder.write(outputs.MODULE, self._module_sum.encode())

    def _compare_module(self) -> None:
        """Log a note if another version of the module saved the checkpoint."""
        if not self._peers.is_chief or not self._module_sum:
            return
        saved = None
        with contextlib.suppress(OSError):
            saved = self._folder.snapshot(outputs.MODULE).content
        if saved not in (None, self._module_sum.encode()):
            name = self._module_sum.split(maxsplit=1)[1].strip()
            self._say(f"note: {name} has changed since the checkpoint; the changed one trains on")

    def _verified(
        self, folder: directory.Directory, state: shard.State
    ) -> tuple[files.Index | None, retention.Health]:
        """Read the index, and check the data. None: a process cannot read it."""
        index, refused, health = None, None, retention.Health.WHOLE
        try:
            index = files.read_index(folder)
            reading.check(folder, index, state.wholes)
            reading.verify(folder, index, state)
        except files.DamagedError as error:
            is_lasting = not isinstance(error, files.UnreadableError)
            health = retention.Health.DAMAGED if is_lasting else retention.Health.UNREADABLE
            self._say(f"skipping a checkpoint: {error}")
        except errors.BadConfigurationError as error:
            refused = error  # all processes decide alike, so none waits here
            health = retention.Health.UNREADABLE
        answers = self._peers.gather(health)
        if refused is not None:
            raise refused
        worst = max(answers)
        if worst and not health:
            name = self._peers.names[answers.index(worst)]
            self._say(f"skipping a checkpoint: {name} cannot read its part of {folder}")
        return None if worst else index, retention.Health(worst)

    def _take(self, job: str, attempt: int | None, namespace: str) -> owner.Owner:
        try:
            return owner.take(self._folder, job, attempt, namespace, self._say)
        except OSError as error:
            if error_classes.of_storage(error):
                raise errors.StorageError(
                    f"{self._folder} does not answer ({error}), and no step is made: see the "
                    "storage and the network."
                ) from error
            raise errors.BadConfigurationError(
                f"The output directory cannot be written to: {error}."
            ) from error

    def _shared(self) -> owner.Owner:
        """Find the owner, after the chief has taken the folder, and check that all see it."""
        self._peers.gather(1)
        current = owner.find(self._folder)
        number = 0 if current is None else int(current.process or "0", 16) % (1 << _SHARED_BITS)
        numbers = self._peers.gather(number)
        for name, there in zip(self._peers.names, numbers, strict=True):
            if there != numbers[0]:
                raise errors.BadConfigurationError(
                    f"{name} does not see what {self._peers.names[0]} writes into {self._folder}. "
                    "Each process saves a part of a divided model: give "
                    "trainer.checkpoint.claim a claim that all of them share (ReadWriteMany)."
                )
        if current is None:
            raise errors.PeerLostError(f"No process owns {self._folder}.")
        return current

    def _has_intact(self, step: int) -> bool:
        """Whether a checkpoint of a step can be read; False where the storage does not say."""
        with contextlib.suppress(OSError):
            return any(map(self._retention.is_whole, entries.of_step(self._folder, step)))
        return False

    def _remove_drafts(self, but: directory.Directory | None = None) -> None:
        """Remove drafts of writers that were cut off.

        A process that still writes one has been replaced.
        """
        for draft in entries.drafts(self._folder):
            if draft != but:
                self._folder.remove(draft)
