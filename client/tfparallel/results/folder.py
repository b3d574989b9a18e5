"""Results of a local run."""

import contextlib
import dataclasses
import hashlib
import io
import os
import pathlib
from collections.abc import AsyncIterator, Iterator, Sequence

import yaml

from tfparallel import errors
from tfparallel.backends.local import folders, run_folder
from tfparallel.results import files, script
from tfparallel_operator.api import load
from tfparallel_trainer.contract import outputs

_CHUNK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class FolderStore:
    """A folder of this machine."""

    path: pathlib.Path

    async def list_files(self) -> Sequence[files.ResultFile]:
        """Return the files below the folder."""
        listed = []
        for root, below, names in os.walk(self.path):  # passes over folders that go meanwhile
            below[:] = [name for name in below if not name.startswith(".")]
            links = [name for name in below if os.path.islink(os.path.join(root, name))]
            listed += [
                files.describe(pathlib.Path(root, name), self.path)
                for name in names + links
                if not name.startswith(".")
            ]
        return listed

    async def read(self, file: files.ResultFile, offset: int) -> AsyncIterator[bytes]:
        """Yield the content of a file from a byte on."""
        with _explained(), self._open(file) as content:
            content.seek(offset)
            left = file.size - offset
            while left > 0 and (chunk := content.read(min(_CHUNK_BYTES, left))):
                left -= len(chunk)
                yield chunk

    async def compute_digest(self, file: files.ResultFile) -> str | None:
        """Return the SHA-256 of a file."""
        digest = hashlib.sha256()
        async for chunk in self.read(file, 0):
            digest.update(chunk)
        return digest.hexdigest()

    def _open(self, file: files.ResultFile) -> io.BufferedReader:
        return (self.path / file.path).open("rb")


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise files.LeftOutError(files.GONE) from error
    except OSError as error:
        raise files.LeftOutError(f"{files.UNREADABLE} ({error.strerror})") from error


def open_run(run: pathlib.Path) -> run_folder.RunFolder:
    """Return a local run as a backend.

    Args:
        run: the folder of a run, or runs/JOB: its newest run.

    Raises:
        SpecError: it is not a run, or one of an older version.
    """
    root = newest(run)
    for name in (folders.STATUS_FILE, folders.MANIFEST_FILE):
        if not (root / name).exists():
            raise load.SpecError(
                f"{run}: no run is in this folder: {name} is missing. Give the folder of a run,"
                " such as runs/JOB/TIME"
            )
    return run_folder.RunFolder(root)


def find_of_script(run: pathlib.Path, path: str | None) -> FolderStore | None:
    """Return where the script of a local run keeps its results; None: the trainer ran.

    Args:
        run: the folder of a run, or runs/JOB: its newest run.
        path: where the script writes, as its container sees it; None: in its one claim.

    Raises:
        Failure: the container mounts no claim there that it may write to, or several.
    """
    layout = folders.Folders(newest(run))
    if not layout.manifest.exists():  # an older version ran it
        return None
    job = load.read_accepted_job(yaml.safe_load(layout.manifest.read_text(encoding="utf-8")))
    if job.spec.trainer is not None:
        return None
    results = script.find(job, path)
    return FolderStore(layout.claim(results.claim) / results.path)


def find(run: pathlib.Path) -> FolderStore:
    """Return where the trainer of a local run keeps its results.

    Args:
        run: the folder of a run, or runs/JOB: its newest run.

    Raises:
        Failure: no shipped trainer has written below it.
    """
    root = newest(run)
    # A script's `fit` writes into the folder that its output_dir names, such as a claim.
    patterns = ("claims/*/*", "claims/*", "pods/*/tfparallel-output/*", ".")
    for result in (outputs.TRAIN_LOG, outputs.MODEL):
        for pattern in patterns:
            for folder in sorted(root.glob(pattern) if pattern != "." else [root]):
                if (folder / result).exists():
                    return FolderStore(folder)
    raise errors.Failure(
        f"{run}: no results of the trainer are below it. Give the folder of a run, such as"
        " runs/JOB/TIME, of a job with spec.trainer"
    )


def is_run(name: str) -> bool:
    """Whether a name is that of a local run, and not that of a job.

    A folder with the name of a job may hold what was fetched earlier, so a bare name is a run only
    if one has ended there; ./NAME is a folder in any case.

    Raises:
        SpecError: it is the path of a folder that does not exist.
    """
    path = pathlib.Path(name)
    is_path = os.sep in name or name in (os.curdir, os.pardir)
    if is_path and not path.is_dir():
        raise load.SpecError(f"{name}: no such folder; give that of a local run, such as runs/JOB")
    return path.is_dir() and (is_path or (newest(path) / folders.STATUS_FILE).exists())


def newest(run: pathlib.Path) -> pathlib.Path:
    """Return the newest run below runs/JOB; the folder of a run is itself the newest."""
    if (run / folders.STATUS_FILE).exists():
        return run
    runs = [status.parent for status in run.glob(f"*/{folders.STATUS_FILE}")]
    return max(runs, key=lambda path: path.stat().st_mtime, default=run)
