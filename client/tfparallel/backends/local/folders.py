"""Folders of runs, runs/<job>/<time> by default, and the paths below them."""

import contextlib
import dataclasses
import datetime
import pathlib
import shutil
from collections.abc import Iterator, Mapping

from tfparallel_operator.api import load

RUNS = pathlib.Path("runs")
"""Below the working directory, unless the user names another folder."""

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
    """Have the folder that --output names, and write below it in the body.

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
        """Held by the runner, so that two never write into one folder; it names the process."""
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
        """The job that runs here, with the overrides of the command line."""
        return self.root / MANIFEST_FILE

    @property
    def pod_changes(self) -> pathlib.Path:
        """When each pod's process started and ended, a line of JSON for each."""
        return self.root / POD_CHANGES_FILE

    @property
    def logs(self) -> pathlib.Path:
        """What the pods wrote, a file for each."""
        return self.root / "logs"

    def log(self, pod: str) -> pathlib.Path:
        """What a pod wrote, over all its attempts."""
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
        """A volume of a pod whose files are made for it alone."""
        return self.root / "made" / pod / _checked("volume", name)

    def failure(self, pod: str) -> pathlib.Path:
        """What a pod's process said of its end."""
        return self.root / "failures" / pod

    def secret(self, name: str) -> pathlib.Path:
        """The files of a Secret."""
        return self.root / "secrets" / _checked("Secret", name)

    def config_map(self, name: str) -> pathlib.Path:
        """The files of a ConfigMap."""
        return self.root / "config" / _checked("ConfigMap", name)


def _checked(kind: str, name: str) -> str:
    """Return the name of an object; a SpecError if, as a path, it leads elsewhere."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise load.SpecError(
            f"received {name!r} as the name of a {kind}; give one of lower-case letters, digits, -"
            " and ."
        )
    return name


@dataclasses.dataclass(frozen=True, slots=True)
class Folder:
    """A real folder that stands for a volume."""

    path: pathlib.Path
    files: Mapping[str, str | bytes] = dataclasses.field(default_factory=dict)
    """Files that it holds, by their paths in it."""
    fresh: bool = False
    """Whether it begins empty with every pod."""
    below: str = ""
    """The part of it that is mounted (subPath)."""

    def __post_init__(self) -> None:
        """Refuse (SpecError) what lies out of the folder."""
        for below in (*self.files, self.below):
            path = pathlib.PurePosixPath(below)
            if path.is_absolute() or ".." in path.parts:
                raise load.SpecError(
                    f"received the path {below!r} in a volume, which leads out of it; give a"
                    " relative path without .."
                )

    @property
    def target(self) -> pathlib.Path:
        """What the mount's path in the pod becomes."""
        return self.path / self.below

    def prepare(self) -> None:
        """Make the folder as the pod expects to find it."""
        if self.fresh:
            shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            _write(self.path / name, content)
        if not self.target.exists():
            self.target.mkdir(parents=True)


def _write(file: pathlib.Path, text: str | bytes) -> None:
    """Write a file that only its owner reads, unless it is there: a peer may be reading it."""
    content = text.encode() if isinstance(text, str) else text
    if file.exists() and file.read_bytes() == content:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o600)
    file.write_bytes(content)


def empty(file: pathlib.Path) -> None:
    """Make an empty file, or empty the one that is there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"")


def write_whole(file: pathlib.Path, content: str) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new."""
    draft = file.with_suffix(".draft")
    draft.write_text(content, encoding="utf-8")
    draft.replace(file)
