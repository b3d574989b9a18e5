"""Changes that a user makes to a job for one run: `--set spec.trainer.epochs=3`."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from tfparallel_operator.api import load, yaml_documents


def apply(document: Mapping[str, Any], assignments: Sequence[str]) -> Mapping[str, Any]:
    """Return the document with `a.b.c=value` assignments made; the value null removes a field.

    Raises:
        SpecError: an assignment has no such form, or leads through what has no fields.
    """
    for assignment in assignments:
        path, equals, written = assignment.partition("=")
        if not equals or not all(path.split(".")):
            raise load.SpecError(
                f"--set {assignment}: write FIELD=VALUE, such as spec.trainer.epochs=3"
            )
        try:
            value = next(yaml.load_all(written, yaml_documents.Loader), None)
        except yaml.YAMLError as error:
            raise load.SpecError(f"--set {assignment}: the value is not YAML") from error
        document = _assigned(document, path.split("."), value, assignment)
    return document


def _assigned(
    node: Mapping[str, Any], path: Sequence[str], value: Any, assignment: str
) -> Mapping[str, Any]:
    head, *remaining = path
    if remaining:
        inner = node.get(head) or {}
        if not isinstance(inner, Mapping):
            raise load.SpecError(f"--set {assignment}: {head} is {inner!r} and has no fields")
        value = _assigned(inner, remaining, value, assignment)
    changed = {**node, head: value}
    if value is None:
        del changed[head]
    return changed
