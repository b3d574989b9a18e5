"""Folders of runs, runs/<job>/<time> by default, and the paths below them."""

import contextlib
import dataclasses
import datetime
import pathlib
import shutil
from collections.abc import Iterator, Mapping

from tfparallel_operator.api import load

RUNS = pathlib.Path("runs")
"""Folder of runs below the working directory, unless the user names another one."""

STATUS_FILE = "status.json"
LOCK_FILE = "run.lock"
EVENTS_FILE = "events.jsonl"
PODS_FILE = "pods.json"
POD_CHANGES_FILE = "pods.jsonl"
MANIFEST_FILE = "manifest.yaml"


def new_folder(name: str, base: pathlib.Path = RUNS) -> pathlib.Path:
    """Return a folder for results that no run has used, named by the time."""
    moment = datetime.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    number, folder = 2, base / name / moment
    while folder.exists():
        number, folder = number + 1, base / name / f"{moment}-{number}"
    return folder


def newest_first(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield the folders of a job's runs."""
    yield from sorted((path for path in folder.iterdir() if path.is_dir()), key=_time, reverse=True)


def _time(folder: pathlib.Path) -> tuple[int, ...]:
    return tuple(int(part) for part in folder.name.split("-") if part.isdecimal())


@contextlib.contextmanager
def output(root: pathlib.Path) -> Iterator[None]:
    """Create the folder of --output, in which the body writes.

    Raises:
        SpecError: it cannot be written to.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise load.SpecError(
            f"--output {root}: {error.strerror}; give a folder that can be written to"
        ) from error


@dataclasses.dataclass(frozen=True, slots=True)
class Folders:
    """The paths below one run's output folder."""

    root: pathlib.Path

    @property
    def status(self) -> pathlib.Path:
        """The job's status as last written: a resumed run reads its attempt there."""
        return self.root / STATUS_FILE

    @property
    def lock(self) -> pathlib.Path:
        """A lock of the runner, so that two never write into one folder.

        It contains the process id.
        """
        return self.root / LOCK_FILE

    @property
    def events(self) -> pathlib.Path:
        """The job's events, a line of JSON for each."""
        return self.root / EVENTS_FILE

    @property
    def pods(self) -> pathlib.Path:
        """The pods that exist, as JSON."""
        return self.root / PODS_FILE

    @property
    def manifest(self) -> pathlib.Path:
        """The manifest of the job, with the overrides of the command line."""
        return self.root / MANIFEST_FILE

    @property
    def pod_changes(self) -> pathlib.Path:
        """When each pod's process started and ended, a line of JSON for each."""
        return self.root / POD_CHANGES_FILE

    @property
    def logs(self) -> pathlib.Path:
        """The logs of the pods, a file for each."""
        return self.root / "logs"

    def log(self, pod: str) -> pathlib.Path:
        """The log of a pod, over all its attempts."""
        return self.logs / f"{pod}.log"

    @property
    def claims(self) -> pathlib.Path:
        """The content of all persistent volume claims, a folder for each."""
        return self.root / "claims"

    def claim(self, name: str) -> pathlib.Path:
        """The content of a persistent volume claim."""
        return self.claims / _checked("claim", name)

    def volume(self, pod: str, name: str) -> pathlib.Path:
        """An emptyDir of a pod."""
        return self.root / "pods" / pod / _checked("volume", name)

    def projected(self, pod: str, name: str) -> pathlib.Path:
        """A volume whose files are created for one pod only."""
        return self.root / "made" / pod / _checked("volume", name)

    def failure(self, pod: str) -> pathlib.Path:
        """The termination message of a pod's process."""
        return self.root / "failures" / pod

    def secret(self, name: str) -> pathlib.Path:
        """The files of a Secret."""
        return self.root / "secrets" / _checked("Secret", name)

    def config_map(self, name: str) -> pathlib.Path:
        """The files of a ConfigMap."""
        return self.root / "config" / _checked("ConfigMap", name)


def _checked(kind: str, name: str) -> str:
    """Return the name of an object; a SpecError if, as a path, it leads out of the folder."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise load.SpecError(
            f"received {name!r} as the name of a {kind}; give one of lower-case letters, digits, -"
            " and ."
        )
    return name


@dataclasses.dataclass(frozen=True, slots=True)
class VolumeFolder:
    """A folder that replaces a volume."""

    path: pathlib.Path
    files: Mapping[str, str | bytes] = dataclasses.field(default_factory=dict)
    """Content of the folder's files, by their paths."""
    fresh: bool = False
    """Whether the folder is emptied for every pod."""
    below: str = ""
    """The mounted part of the folder (subPath)."""

    def __post_init__(self) -> None:
        """Refuse (SpecError) a path that leads out of the folder."""
        for below in (*self.files, self.below):
            path = pathlib.PurePosixPath(below)
            if path.is_absolute() or ".." in path.parts:
                raise load.SpecError(
                    f"received the path {below!r} in a volume, which leads out of it; give a"
                    " relative path without .."
                )

    @property
    def target(self) -> pathlib.Path:
        """The path on this machine that replaces the mount's path in the pod."""
        return self.path / self.below

    def prepare(self) -> None:
        """Create the folder with the content that the pod expects."""
        if self.fresh:
            shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            _write(self.path / name, content)
        if not self.target.exists():
            self.target.mkdir(parents=True)


def _write(file: pathlib.Path, text: str | bytes) -> None:
    """Write a file that only its owner may read, unless it exists, because a peer may be reading
    it."""
    content = text.encode() if isinstance(text, str) else text
    if file.exists() and file.read_bytes() == content:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o600)
    file.write_bytes(content)


def empty(file: pathlib.Path) -> None:
    """Create an empty file, or empty the existing one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"")


def write_whole(file: pathlib.Path, content: str) -> None:
    """Write a file atomically: after a crash, it has the old or the new content."""
    draft = file.with_suffix(".draft")
    draft.write_text(content, encoding="utf-8")
    draft.replace(file)
