"""The checkpoints of a job: newest first, the oldest removed, writers of old attempts kept out.

Each process that holds variables writes a part. The chief, which owns the folder (`owner`), gives a
checkpoint its name when all parts are there. A process alone is the chief of no others.
"""

import contextlib
import re
import zlib
from collections.abc import Callable, Mapping

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import files, keys, owner, shard
from tfparallel_trainer.comms import agreement
from tfparallel_trainer.runtime.lifecycle import faults
from tfparallel_trainer.storage import directory

_STEP = re.compile(r"step-(\d{10})(-.+)?")
_SHARED_BITS = 60


class Store:
    """The directory that the checkpoints of a job live in."""

    def __init__(
        self,
        folder: directory.Directory,
        keep: int,
        job: str,
        attempt: int | None,
        say: Callable[[str], None],
        together: agreement.Peers | None = None,
    ) -> None:
        """Take the folder for an attempt at the job of this uid; None takes the next number.

        `together` are the processes that each hold a part; absent: this one holds all.

        Raises:
            PreemptedError: a newer attempt has already taken it.
            BadConfigurationError: the folder cannot be written to, or is not one for all.
            PeerLostError: the chief could not take it.
        """
        self._folder = folder
        self._keep = keep
        self._say = say
        self._peers = together or agreement.Peers()
        self._saves = 0
        if self._peers.is_chief:
            self._owner = self._take(job, attempt)
        if not self._peers.alone:
            self._owner = self._shared()

    @property
    def attempt(self) -> int:
        """Number of the attempt, from 1."""
        return self._owner.attempt

    def save(self, state: shard.State, at: files.Position) -> None:
        """Save all variables as the checkpoint of a step, and remove the oldest beyond `keep`.

        Raises:
            PreemptedError: another attempt has taken the folder.
            StorageError: the disk does not take it; the checkpoints before are as they were.
            PeerLostError: another process could not write its part.
        """
        if self._peers.alone and self._has_intact(at.step):
            return
        self._saves += 1  # no save writes where an earlier one of this step may have left files
        writer = f"{self.attempt:06}-{self._owner.process}-{self._saves}"
        draft = self._folder.draft(name(at.step), writer)
        self._together(at, lambda: self._write_part(draft, state))
        self._together(at, lambda: self._finish(draft, at, state))

    def _together(self, at: files.Position, work: Callable[[], None]) -> None:
        """Do a part of saving on each process; it is done when it has succeeded on all."""
        error: Exception | None = None
        try:
            work()
        except (OSError, files.DamagedError, errors.TrainerError) as raised:
            error = raised
        failed = self._peers.failed(error is None)
        if isinstance(error, errors.TrainerError):
            raise error
        if failed is not None and self._peers.is_chief:
            with contextlib.suppress(OSError):
                self._remove_drafts()  # they may be what fills the disk
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
            kept = checkpoints(self._folder)
        except OSError:
            return f"{self._folder} does not say which one is the last good one"
        if not kept:
            return "There is none before"
        return f"{name(step_of(kept[-1]))} is the last good one"

    def _write_part(self, draft: directory.Directory, state: shard.State) -> None:
        owner.check(self._folder, self._owner)
        if self._peers.is_chief:
            self._remove_drafts(but=draft)
        files.write_part(draft, self._peers.me, state)

    def _finish(self, draft: directory.Directory, at: files.Position, state: shard.State) -> None:
        """Make what all have written a checkpoint, and remove old ones then."""
        if not self._peers.is_chief:
            return
        index = files.complete(draft, self._peers.count, self.attempt, at, state.wholes)
        owner.check(self._folder, self._owner)
        if self._has_intact(at.step):
            self._folder.remove(draft)
            return
        for damaged in of_step(self._folder, at.step):
            self._folder.remove(damaged)
        self._folder.publish(draft, name(at.step), index)
        kept = sorted({step_of(folder) for folder in checkpoints(self._folder)})[-self._keep :]
        for folder in checkpoints(self._folder):
            if step_of(folder) not in kept:
                self._folder.remove(folder)

    def restore(self, state: shard.State) -> files.Position | None:
        """Assign the newest whole checkpoint to the variables; None when there is none.

        It may have been saved under any mesh. Of its data only what these ranks hold is read.

        Raises:
            BadConfigurationError: it is one of another model.
            StorageError: it changed while it was read.
        """
        steps = [step_of(folder) for folder in checkpoints(self._folder)]
        while True:
            (step, *_) = self._peers.gather(steps.pop() if steps else -1)
            if step < 0:
                return None
            steps = [one for one in steps if one < step]
            folder = self._same(step)
            index = None if folder is None else self._verified(folder, state)
            if folder is None or index is None:
                continue
            try:
                for key, one in state.each():
                    parts = files.blocks(folder, index, key, one.box)
                    shard.assign(one.variable, ((at.within(one.box), block) for at, block in parts))
            except files.DamagedError as error:
                raise errors.StorageError(
                    f"{folder} was whole and is now damaged: {error}"
                ) from error
            return index.position

    def _same(self, step: int) -> directory.Directory | None:
        """The newest checkpoint of a step; None: processes see different ones, or none."""
        checkpoints = of_step(self._folder, step)
        names = self._peers.gather(zlib.crc32(checkpoints[-1].name.encode()) if checkpoints else -1)
        return checkpoints[-1] if checkpoints and len(set(names)) == 1 else None

    def _verified(self, folder: directory.Directory, state: shard.State) -> files.Index | None:
        """Read the index and, not to keep, the data; None if damaged for any of the processes."""
        index, refused = None, None
        try:
            index = files.read_index(folder)
            check(folder, index, state.wholes)
            for key, one in state.each():
                for _ in files.blocks(folder, index, key, one.box):
                    pass
        except files.DamagedError as error:
            index = None
            self._say(f"skipping a checkpoint: {error}")
        except errors.BadConfigurationError as error:
            refused = error  # all compare the same, so none waits here
        failed = self._peers.failed(index is not None)
        if refused is not None:
            raise refused
        if failed is not None and index is not None:
            self._say(f"skipping a checkpoint: {failed} cannot read its part of {folder}")
        return index if failed is None else None

    def _take(self, job: str, attempt: int | None) -> owner.Owner:
        try:
            return owner.take(self._folder, job, attempt)
        except OSError as error:
            if faults.of_storage(error):
                raise errors.StorageError(
                    f"{self._folder} does not answer ({error}), and no step is made: see the "
                    "storage and the network."
                ) from error
            raise errors.BadConfigurationError(
                f"The output directory cannot be written to: {error}."
            ) from error

    def _shared(self) -> owner.Owner:
        """Find who owns the folder, once the chief has taken it, and see that all see the same."""
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
            raise errors.PeerLostError(f"{self._folder} belongs to nobody any more.")
        return current

    def _has_intact(self, step: int) -> bool:
        """Whether a checkpoint of a step can be read; False where the storage does not say."""
        with contextlib.suppress(OSError):
            for folder in of_step(self._folder, step):
                with contextlib.suppress(files.DamagedError):
                    for _ in files.read(folder, files.read_index(folder)):
                        pass
                    return True
        return False

    def _remove_drafts(self, but: directory.Directory | None = None) -> None:
        """Remove what writers left that were cut off; who still writes one has been replaced."""
        for draft in self._folder.drafts():
            if draft != but:
                self._folder.remove(draft)


def checkpoints(folder: directory.Directory) -> list[directory.Directory]:
    """The checkpoints in a directory, the oldest first."""
    return [entry for entry in folder.entries() if _STEP.fullmatch(entry.name)]


def of_step(folder: directory.Directory, step: int) -> list[directory.Directory]:
    """The checkpoints of a step; in a bucket, each writer's is one of its own."""
    return [entry for entry in checkpoints(folder) if step_of(entry) == step]


def name(step: int) -> str:
    """The name of the checkpoint of a step."""
    return f"step-{step:010}"


def step_of(checkpoint: directory.Directory) -> int:
    """The step that a checkpoint was saved after."""
    match = _STEP.fullmatch(checkpoint.name)
    if match is None:
        raise ValueError(f"{checkpoint} is no checkpoint")
    return int(match[1])


def check(
    folder: directory.Directory, index: files.Index, wholes: Mapping[str, shard.Whole]
) -> None:
    """Refuse (BadConfigurationError) a checkpoint of another model, by keys, shapes and labels."""

    def shown(key: str) -> str:
        return f"{key} ({(index.arrays.get(key) or wholes[key]).label})"

    there = {key: entry.shape for key, entry in index.arrays.items()}
    here = {key: whole.shape for key, whole in wholes.items()}
    differing = keys.differences(there, here, shown)
    if differing:
        raise errors.BadConfigurationError(
            f"{folder} is a checkpoint of another model: {differing}. "
            "Give the changed model another claim or uri, or remove the checkpoints."
        )
    exchanged = keys.exchanged(
        {key: entry.label for key, entry in index.arrays.items() if keys.is_weight(key)},
        {key: whole.label for key, whole in wholes.items() if keys.is_weight(key)},
    )
    if exchanged is not None:
        label, then, now = exchanged
        raise errors.BadConfigurationError(
            f"{folder} is a checkpoint of another model: {label} is {then} there and {now} here, "
            "so weights would change places. Give the model its order again, give the changed one "
            "another claim or uri, or remove the checkpoints."
        )
