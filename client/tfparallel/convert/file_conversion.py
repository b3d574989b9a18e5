"""What `tfparallel convert` reads, writes and reports."""

import dataclasses
import difflib
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from tfparallel import validation
from tfparallel.convert import (
    conversion,
    difference_report,
    rewrite,
    template,
    tfjob,
    tfjob_differences,
    trainjob,
    trainjob_differences,
)
from tfparallel.job_source import source
from tfparallel_operator.api import load, yaml_documents
from tfparallel_trainer.contract import documentation

STDIN = pathlib.Path("-")

TFJOB = difference_report.JobKind(
    tfjob.KIND, tfjob_differences.TFJobDifference, documentation.Section.EVERY_TFJOB
)
TRAINJOB = difference_report.JobKind(
    trainjob.KIND, trainjob_differences.TrainJobDifference, documentation.Section.EVERY_TRAINJOB
)
_CONVERTERS = {TFJOB: tfjob.convert, TRAINJOB: trainjob.convert}
_KINDS = {kind.name.casefold(): kind for kind in _CONVERTERS}


@dataclasses.dataclass(frozen=True, slots=True)
class FileChange:
    """A file before and after."""

    name: str
    before: str
    after: str

    def diff(self) -> str:
        """Return what changes, as a unified diff."""
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            fromfile=self.name,
            tofile=self.name,
        )
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in lines
        )


@dataclasses.dataclass(frozen=True, slots=True)
class ConvertedFiles:
    """The converted files, and what is different."""

    files: tuple[FileChange, ...]
    reports: tuple[difference_report.ObjectReport, ...]
    notes: tuple[str, ...]
    """What became of the text."""


def convert(files: Sequence[pathlib.Path], *, write_defaults: bool) -> ConvertedFiles:
    """Convert every TFJob and TrainJob of some files; what else they hold stays as it is.

    Args:
        files: their paths; - is the standard input.
        write_defaults: whether Kubeflow's defaults are written for fields that a job leaves out.

    Raises:
        load.SpecError: with a sentence for each job that cannot be converted.
    """
    converted: list[FileChange] = []
    documents: list[Mapping[str, Any]] = []
    reports: list[difference_report.ObjectReport] = []
    notes: list[str] = []
    problems: list[str] = []
    for path in files:
        name = _describe(path)
        try:
            text = validation.read_input() if path == STDIN else source.read_text(path)
            parsed = yaml_documents.parse(text, name)
            documents += parsed
            jobs = _convert_jobs(parsed, name, write_defaults)
            reports += jobs.reports
            reports += _other_objects(parsed, name)
            after = _write(text, [_replaced(document, jobs.by_id) for document in parsed])
        except load.SpecError as error:
            problems += error.problems
        else:
            notes += [f"{name}: {note}" for note in (*after.notes, *_nested_jobs(parsed))]
            converted.append(FileChange(name, text, after.text))
    if not problems and not any(_jobs(documents)):
        expected = " or ".join(repr(kind.name) for kind in _CONVERTERS)
        kinds = ", ".join(repr(document.get("kind")) for document in documents)
        read = ", ".join(map(_describe, files))
        problems.append(
            f"{read}: expected kind {expected}, received {kinds or 'nothing'}; give a file that"
            " holds one"
        )
    if problems:
        raise load.SpecError(*problems)
    return ConvertedFiles(tuple(converted), tuple(reports), tuple(notes))


def _describe(path: pathlib.Path) -> str:
    return validation.STDIN if path == STDIN else str(path)


@dataclasses.dataclass(frozen=True, slots=True)
class _Jobs:
    """The converted jobs of one file, by the identity of the documents that they replace."""

    by_id: Mapping[int, conversion.Fields]
    reports: tuple[difference_report.ObjectReport, ...]


def _convert_jobs(documents: Sequence[Mapping[str, Any]], name: str, write_defaults: bool) -> _Jobs:
    by_id: dict[int, conversion.Fields] = {}
    reports: list[difference_report.ObjectReport] = []
    problems: list[str] = []
    for job, kind in _jobs(documents):
        job_label = f"{name}: {_name(job)}"
        try:
            converted = _CONVERTERS[kind](job, write_defaults=write_defaults)
        except load.SpecError as error:
            problems += [f"{job_label}: {problem}" for problem in error.problems]
        else:
            by_id[id(job)] = converted.document
            reports.append(difference_report.ObjectReport(job_label, kind, converted.notices))
    if problems:
        raise load.SpecError(*problems)
    return _Jobs(by_id, tuple(reports))


def _other_objects(
    documents: Sequence[Mapping[str, Any]], name: str
) -> Iterator[difference_report.ObjectReport]:
    """Yield what objects next to the jobs, such as Services, have to change."""
    names = [_object_name(job) for job, kind in _jobs(documents) if kind == TFJOB]
    for other in _objects(documents):
        tfjob_recorder, trainjob_recorder = conversion.Recorder(), conversion.Recorder()
        if template.mentions_old_labels(other):
            tfjob_recorder.note("spec", tfjob_differences.TFJobDifference.LABELS)
            if other.get("kind") == "Service":
                tfjob_recorder.note("spec", tfjob_differences.TFJobDifference.NETWORK)
        if trainjob.mentions_labels(other):
            trainjob_recorder.note("spec", trainjob_differences.TrainJobDifference.POD_LABELS)
        for job_name in names:
            if address := template.pod_address(other, job_name):
                tfjob_recorder.note("spec", tfjob_differences.TFJobDifference.SERVICES, address)
        for kind, recorder in ((TFJOB, tfjob_recorder), (TRAINJOB, trainjob_recorder)):
            if recorder.notices:
                yield difference_report.ObjectReport(
                    f"{name}: {_name(other)}", kind, tuple(recorder.notices)
                )


def _nested_jobs(documents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each job inside another object, such as an Experiment of Katib."""
    for other in _objects(documents):
        for field, kind in _kinds_below(other, ""):
            yield (
                f"{_name(other)} holds a {kind} in {field}, which stays as it is: convert it in a"
                " file of its own"
            )


def _kinds_below(value: Any, field: str) -> Iterator[tuple[str, str]]:
    """Yield the fields below a value that hold a job, not a reference to one, with the kind."""
    is_object = isinstance(value, Mapping) and isinstance(value.get("spec"), Mapping)
    if field and is_object and str(value.get("kind")).casefold() in _KINDS:
        yield field, str(value["kind"])
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _kinds_below(inner, f"{field}.{key}" if field else str(key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _kinds_below(inner, f"{field}[{index}]")


@dataclasses.dataclass(frozen=True, slots=True)
class _Text:
    text: str
    notes: tuple[str, ...]


def _write(before: str, documents: Sequence[Any]) -> _Text:
    text = rewrite.rewrite(before, documents)
    if text is None:
        notes = ["rewritten without its comments and anchors"]
        text = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False)
    elif _comments(text) < _comments(before):
        notes = ["the comments in replaced parts are not kept"]
    else:
        notes = []
    return _Text(text if text.endswith("\n") else f"{text}\n", tuple(notes))


def _comments(text: str) -> int:
    return sum(line.lstrip().startswith("#") for line in text.splitlines())


class _Dumper(yaml.SafeDumper):
    """Writes everything out: people do not write anchors for pods."""

    def ignore_aliases(self, _: Any) -> bool:
        return True


def _jobs(
    documents: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[Mapping[str, Any], difference_report.JobKind]]:
    """Yield the jobs of a file and of its lists, each with its kind."""
    for document in yaml_documents.flatten(documents):
        kind = _KINDS.get(str(document.get("kind")).casefold())
        if kind is not None:
            yield document, kind


def _objects(documents: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield what is not a job."""
    for document in yaml_documents.flatten(documents):
        if str(document.get("kind")).casefold() not in _KINDS:
            yield document


def _replaced(document: Any, jobs: Mapping[int, Any]) -> Any:
    """Return a document with the converted jobs in their places."""
    if id(document) in jobs:
        return jobs[id(document)]
    if not isinstance(document, Mapping) or not yaml_documents.is_list(document):
        return document
    items = [_replaced(item, jobs) for item in document["items"]]
    if items == document["items"]:
        return document
    return {**document, "apiVersion": "v1", "kind": "List", "items": items}


def _name(document: Mapping[str, Any]) -> str:
    return f"{document.get('kind')} {_object_name(document) or 'without a name'}"


def _object_name(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    fields = metadata if isinstance(metadata, Mapping) else {}
    return str(fields.get("name") or fields.get("generateName") or "")
