"""Parses the YAML of a job's file as kubectl does."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from tfparallel_operator.api import load, metadata, names, problems

MERGE = "tag:yaml.org,2002:merge"
"""The tag of the key <<."""

_TAG = "tag:yaml.org,2002:"


class Loader(yaml.SafeLoader):
    """Reads dates and sexagesimal numbers as text, and 1e3 as a number, as kubectl does."""


Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag.removeprefix(_TAG) not in ("timestamp", "int", "float", "value")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(
    f"{_TAG}int",
    re.compile(r"^[-+]?(0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"),
    list("-+0123456789"),
)
Loader.add_implicit_resolver(
    f"{_TAG}float",
    re.compile(
        r"^([-+]?(\.[0-9]+|[0-9][0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
    list("-+.0123456789"),
)


def parse(text: str, source: str) -> list[Mapping[str, Any]]:
    """Parse the YAML documents of a file, without empty ones.

    Raises:
        SpecError: the text is not YAML, a document is not a mapping, or a field appears twice.
    """
    return [document for document, _ in parse_nodes(text, source)]


def parse_nodes(text: str, source: str) -> list[tuple[Mapping[str, Any], yaml.MappingNode]]:
    """Parse the same, each document with its node, which has its line numbers.

    Raises:
        SpecError: the text is not YAML, a document is not a mapping, or a field appears twice.
    """
    pairs: list[tuple[Any, Any]] = []
    faults: list[str] = []
    loader = Loader(text)
    try:
        while loader.check_node():
            node: Any = loader.get_node()
            faults += _repeated_fields(node, source)  # `construct_document` merges << into it.
            pairs.append((loader.construct_document(node), node))
    except yaml.MarkedYAMLError as error:
        raise load.SpecError(_syntax_sentence(error, text, source)) from error
    except (yaml.YAMLError, ValueError) as error:
        raise load.SpecError(f"{source}: not YAML: {' '.join(str(error).split())}") from error
    pairs = [(document, node) for document, node in pairs if document is not None]
    for document, _ in pairs:
        if not isinstance(document, Mapping):
            raise load.SpecError(
                f"{source}: expected fields such as apiVersion and kind, received "
                f"{str(document)[:60]!r}"
            )
    if faults:
        raise load.SpecError(*faults)
    return pairs


def parse_objects(text: str, source: str) -> list[Mapping[str, Any]]:
    """Parse the objects of a YAML file: its documents, and the items of its lists.

    Raises:
        SpecError: as of `parse`.
    """
    return list(flatten(parse(text, source)))


def parse_object_nodes(text: str, source: str) -> list[tuple[Mapping[str, Any], yaml.MappingNode]]:
    """Parse the same, each object with its node.

    Raises:
        SpecError: as of `parse`.
    """
    return list(_flatten_nodes(parse_nodes(text, source)))


def flatten(documents: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield objects, with the items of lists instead of the lists."""
    for document in documents:
        if is_list(document):
            yield from flatten(item for item in document["items"] if isinstance(item, Mapping))
        else:
            yield document


def is_list(document: Mapping[str, Any]) -> bool:
    """Whether a document is a list of objects, as `kubectl get -o yaml` prints it."""
    kind = str(document.get("kind")).casefold()
    return kind.endswith("list") and isinstance(document.get("items"), list)


def find_job(documents: Sequence[Mapping[str, Any]], source: str) -> Mapping[str, Any]:
    """Return the only TFParallelJob among the documents of a file, with a name.

    Raises:
        SpecError: there is none, or more than one.
    """
    jobs = [document for document in documents if document.get("kind") == names.KIND]
    if len(jobs) == 1:
        return metadata.generate_name(jobs[0])
    if jobs:
        raise load.SpecError(
            f"{source}: holds {len(jobs)} jobs of kind {names.KIND}; give one a file"
        )
    kinds = ", ".join(repr(document.get("kind")) for document in documents) or "nothing"
    is_kubeflow = "'TFJob'" in kinds or "'TrainJob'" in kinds
    remedy = f"; tfparallel convert {source} makes one of it" if is_kubeflow else ""
    raise load.SpecError(f"{source}: expected kind {names.KIND!r}, received {kinds}{remedy}")


def _flatten_nodes(
    pairs: Iterable[tuple[Any, yaml.Node]],
) -> Iterator[tuple[Mapping[str, Any], yaml.MappingNode]]:
    """Yield objects with their nodes, with the items of lists instead of the lists."""
    for document, node in pairs:
        if not isinstance(document, Mapping) or not isinstance(node, yaml.MappingNode):
            continue
        items = next((inner for key, inner in node.value if key.value == "items"), None)
        if items is not None and is_list(document):
            yield from _flatten_nodes(zip(document["items"], items.value, strict=True))
        else:
            yield document, node


def _syntax_sentence(error: yaml.MarkedYAMLError, text: str, source: str) -> str:
    """Say in which line of a file the YAML is invalid, and why."""
    mark = error.problem_mark or error.context_mark
    position = source if mark is None else f"{source}:{mark.line + 1}"
    if "{{" in text:
        return (
            f"{position}: a template, not YAML yet; render it first, such as with `helm template`"
        )
    reason = ", ".join(filter(None, (error.context, error.problem)))
    return f"{position}: not YAML: {reason}; correct its indentation, quotes or brackets"


def _repeated_fields(root: yaml.Node, source: str) -> Iterator[str]:
    """Yield a sentence for each duplicate field, which the API server refuses."""
    visited: set[int] = set()
    pending: list[tuple[problems.Place, yaml.Node]] = [((), root)]
    while pending:
        location, node = pending.pop(0)
        if id(node) in visited:
            continue
        visited.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            pending += [((*location, number), item) for number, item in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            continue
        lines: dict[str, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            inner = (*location, name)
            if name in lines and key.tag != MERGE:
                yield (
                    f"{source}:{line}: {problems.path(inner)}: appears twice, first in line"
                    f" {lines[name]}; remove one of them"
                )
            lines[name] = line
            pending.append((inner, value))
