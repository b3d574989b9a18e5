"""Checks the jobs of YAML files, and names the line of each problem."""

import contextlib
import dataclasses
import importlib.util
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from tfparallel.job_source import cluster_checks, source
from tfparallel_operator.api import load, names, problems, yaml_documents

STDIN = "stdin"
"""The name of the standard input in messages."""

_SUFFIXES = (".yaml", ".yml", ".json")
_FIELD = re.compile(r"[A-Za-z]\w+(?:\.\w+)*")


@dataclasses.dataclass(frozen=True, slots=True)
class ManifestFile:
    """A text that may contain jobs."""

    name: str
    text: str
    needs_job: bool = True
    """Whether the text must contain a job. In a folder, only some files do."""


@dataclasses.dataclass(frozen=True, slots=True)
class ManifestJob:
    """A job of a file, with the lines of its fields."""

    file: str
    is_alone: bool
    """Whether the file holds no other job."""
    document: Mapping[str, Any]
    root: yaml.MappingNode

    @property
    def title(self) -> str:
        """The file; if it holds several jobs, with the line and the name of this one."""
        if self.is_alone:
            return self.file
        metadata = self.document.get("metadata")
        name = metadata.get("name", "") if isinstance(metadata, Mapping) else ""
        return f"{self.file}:{self.root.start_mark.line + 1}: {name}"

    def locate(self, faults: Iterable[problems.Problem]) -> list[str]:
        """Return a sentence with file and line for each problem, in the order of the lines."""
        lines = sorted((_line(self.root, fault), str(fault)) for fault in faults)
        return [f"{self.file}:{line}: {sentence}" for line, sentence in dict.fromkeys(lines)]


@contextlib.contextmanager
def located(path: pathlib.Path, assignments: Sequence[str] = ()) -> Iterator[None]:
    """Name file and line of each wrong field of the one job of a file.

    Args:
        assignments: changes to the job, as `--set` takes them: their fields have no line.

    Raises:
        SpecError: with a sentence for each problem.
    """
    try:
        yield
    except load.SpecError as error:
        of_file = [fault for fault in error.located if _is_of_file(fault, assignments)]
        if not of_file:
            raise
        others = [fault for fault in error.located if fault not in of_file]
        [job] = read_jobs(ManifestFile(str(path), source.read_text(path)))
        raise load.SpecError(*job.locate(of_file), *others) from error


def _is_of_file(fault: problems.Problem, assignments: Sequence[str]) -> bool:
    """Whether it is about a field, and no assignment sets the field, its parent or a field of it.

    A rule of the whole job has no place: its sentence begins with the field.
    """
    path = tuple(map(str, fault.location)) or tuple(fault.message.partition(" ")[0].split("."))
    changed = (tuple(assignment.partition("=")[0].split(".")) for assignment in assignments)
    return (bool(fault.location) or path[0] in ("metadata", "spec")) and all(
        path[: len(other)] != other[: len(path)] for other in changed
    )


def find_files(path: pathlib.Path) -> list[ManifestFile]:
    """Return the file at a path, those of a folder (not of its folders), or for - the input.

    Raises:
        SpecError: one cannot be read, or the folder has none.
    """
    if str(path) == "-":
        return [ManifestFile(STDIN, read_input())]
    if not path.is_dir():
        return [ManifestFile(str(path), source.read_text(path))]
    paths = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES and file.is_file())
    files = [ManifestFile(str(file), source.read_text(file), needs_job=False) for file in paths]
    if not any(names.KIND in file.text for file in files):
        raise load.SpecError(
            f"{path}: no file of this folder holds a {names.KIND}; give the path of a job's YAML"
            " file, or of its folder"
        )
    return files


def read_input() -> str:
    """Read the standard input.

    Raises:
        SpecError: it is not text.
    """
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise load.SpecError(f"{STDIN}: not UTF-8 text; give a job's YAML file") from error


def read_jobs(file: ManifestFile) -> list[ManifestJob]:
    """Return the jobs of a file and of its lists; objects of other kinds are left out.

    Raises:
        SpecError: it is not YAML, or it needs a job and holds none.
    """
    pairs = yaml_documents.parse_object_nodes(file.text, file.name)
    jobs = [(document, node) for document, node in pairs if document.get("kind") == names.KIND]
    if not jobs and file.needs_job:
        yaml_documents.find_job([document for document, _ in pairs], file.name)
    return [ManifestJob(file.name, len(jobs) == 1, document, node) for document, node in jobs]


def check(job: ManifestJob) -> list[str]:
    """Return a sentence with file and line for each problem of a job."""
    try:
        load.parse_manifest(job.document)
    except load.SpecError as error:
        return job.locate(error.located)
    return []


def check_module(job: ManifestJob) -> list[str]:
    """Return a sentence for each problem of the module that lies next to a job's valid file."""
    return _module_problems(job, has_packages=False)


def _module_problems(job: ManifestJob, *, has_packages: bool) -> list[str]:
    if job.file == STDIN:
        return []
    folder = pathlib.Path(job.file).parent
    parsed = load.parse_manifest(job.document)
    found_problems = source.find_module_problems(parsed, folder, has_packages=has_packages)
    prefix = "" if folder == pathlib.Path() else f"{folder}/"
    return [f"{prefix}{problem}" for problem in found_problems]


def find_warnings(job: ManifestJob) -> list[str]:
    """Return a sentence with file and line for each field that no cluster uses, and each package
    that the module imports and that is missing here, if this Python trains models.

    Raises:
        SpecError: the job is not valid.
    """
    unused = job.locate(cluster_checks.find_warnings(load.parse_manifest(job.document)))
    if importlib.util.find_spec("tensorflow") is None:
        return unused
    return [*unused, *_module_problems(job, has_packages=True)]


def _line(root: yaml.Node, fault: problems.Problem) -> int:
    """Return the line of a problem's field, or of the nearest parent that is there."""
    mark, node = root.start_mark, root
    for part in fault.location:
        entry = _entry(node, part)
        if entry is None:
            return int(mark.line) + 1
        mark, node = entry[0].start_mark, entry[1]
    if isinstance(node, yaml.MappingNode) and not fault.message.startswith(problems.UNKNOWN_FIELD):
        mark = _mentioned(node, fault.message) or mark
    return int(mark.line) + 1


def _mentioned(node: yaml.Node, message: str) -> Any:
    """Return the mark of the first field below a node that a sentence names; None: of none."""
    for word in _FIELD.findall(message):
        mark, inner = None, node
        for part in word.split("."):
            entry = _entry(inner, part)
            if entry is None:
                break
            mark, inner = entry[0].start_mark, entry[1]
        else:
            return mark
    return None


def _entry(node: yaml.Node, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """Return the key and the value of a field, or an item twice; None: it is not there."""
    if isinstance(node, yaml.SequenceNode):
        number = int(part) if str(part).isdecimal() else len(node.value)
        return (node.value[number],) * 2 if number < len(node.value) else None
    if not isinstance(node, yaml.MappingNode):
        return None
    for key, value in reversed(node.value):
        if key.value == str(part):
            return key, value
    return None
