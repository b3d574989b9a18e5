"""What `tfparallel convert` reads, writes and tells."""

import dataclasses
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from tfparallel.convert import rewrite, template, tfjob
from tfparallel_operator.api import load
from tfparallel_operator.local import source

STDIN = pathlib.Path("-")

_LISTS = ("List", f"{tfjob.KIND}List")


@dataclasses.dataclass(frozen=True, slots=True)
class Written:
    """The converted files as one text, and what to know of it."""

    text: str
    notices: tuple[str, ...]


def convert(files: Sequence[pathlib.Path], *, write_defaults: bool) -> Written:
    """Convert every TFJob of some files; what else they hold stays as it is.

    Args:
        files: their paths; - is the standard input.
        write_defaults: whether TFJob's defaults are written for fields that it leaves out.

    Raises:
        load.SpecError: with a sentence for each job that cannot be converted.
    """
    texts: list[str] = []
    notices: list[str] = []
    problems: list[str] = []
    given = []
    for file in files:
        name = "standard input" if file == STDIN else str(file)
        try:
            given.append(_File.parse(name, _read(file), write_defaults=write_defaults))
            texts.append(given[-1].converted(notices))
        except load.SpecError as error:
            problems += error.problems
    if not problems and not any(file.jobs for file in given):
        kinds = ", ".join(repr(one.get("kind")) for file in given for one in file.documents)
        problems.append(f"expected kind {tfjob.KIND!r}, received {kinds or 'nothing'}")
    if problems:
        raise load.SpecError(*problems)
    return Written("---\n".join(texts), tuple(notices))


def _read(file: pathlib.Path) -> str:
    if file != STDIN:
        return source.read_text(file)
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise load.SpecError("standard input: not UTF-8 text; give TFJobs as YAML") from error


@dataclasses.dataclass(frozen=True, slots=True)
class _File:
    name: str
    text: str
    documents: Sequence[Mapping[str, Any]]
    write_defaults: bool

    @classmethod
    def parse(cls, name: str, text: str, *, write_defaults: bool) -> "_File":
        return cls(name, text, load.parse_documents(text, name), write_defaults)

    @property
    def jobs(self) -> list[Mapping[str, Any]]:
        return list(_jobs(self.documents))

    def converted(self, notices: list[str]) -> str:
        """Return the text with its TFJobs converted, and add what is to be told."""
        made: dict[int, dict[str, Any]] = {}
        problems: list[str] = []
        for job in self.jobs:
            place = f"{self.name}: {_name(job)}"
            try:
                converted = tfjob.convert(job, write_defaults=self.write_defaults)
            except load.SpecError as error:
                problems += [f"{place}: {problem}" for problem in error.problems]
            else:
                made[id(job)] = converted.document
                notices += [f"{place}: {notice}" for notice in converted.notices]
        if problems:
            raise load.SpecError(*problems)
        for other in self.documents:
            untouched = id(other) not in made and not _is_list(other)
            if untouched and template.mentions_old_labels(other):
                told = "names labels of TFJob's pods; here they have others: change them"
                notices.append(f"{self.name}: {_name(other)}: {told}")
        return self._write([_replaced(document, made) for document in self.documents], notices)

    def _write(self, wanted: Sequence[Any], notices: list[str]) -> str:
        text = rewrite.rewrite(self.text, wanted)
        if text is None:
            notices.append(f"{self.name}: rewritten without its comments and anchors")
            text = yaml.dump_all(wanted, Dumper=_Dumper, sort_keys=False)
        return text if text.endswith("\n") else f"{text}\n"


class _Dumper(yaml.SafeDumper):
    """Writes everything out: people do not write anchors for pods."""

    def ignore_aliases(self, _: Any) -> bool:
        return True


def _is_list(document: Mapping[str, Any]) -> bool:
    return document.get("kind") in _LISTS and isinstance(document.get("items"), list)


def _jobs(documents: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The TFJobs of a file, and those of its lists."""
    for document in documents:
        if _is_list(document):
            yield from _jobs([item for item in document["items"] if isinstance(item, Mapping)])
        elif str(document.get("kind")).casefold() == tfjob.KIND.casefold():
            yield document


def _replaced(document: Any, made: Mapping[int, Any]) -> Any:
    """Return a document with the converted jobs in their places."""
    if id(document) in made:
        return made[id(document)]
    if not isinstance(document, Mapping) or not _is_list(document):
        return document
    items = [_replaced(item, made) for item in document["items"]]
    kind = {"apiVersion": "v1", "kind": "List"}
    return {**document, **kind, "items": items}


def _name(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    given = metadata if isinstance(metadata, Mapping) else {}
    name = given.get("name") or given.get("generateName") or "without a name"
    return f"{document.get('kind')} {name}"
