"""Fills in fields that a job's template leaves out with the installation's defaults. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

_CONTAINERS = ("containers", "initContainers")
"""Lists in which items of the same name are merged.

In other lists, the job's item replaces the default.
"""


def merge(defaults: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of both. If both have a field, the template's value wins."""
    merged = dict(defaults)
    for name, value in template.items():
        default = defaults.get(name)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            merged[name] = merge(default, value)
        elif isinstance(value, Sequence) and isinstance(default, list):
            merged[name] = _merge_lists(default, value, deep=name in _CONTAINERS)
        else:
            merged[name] = value
    return merged


def _merge_lists(defaults: Sequence[Any], items: Sequence[Any], *, deep: bool) -> list[Any]:
    """Return the items of both. If two have the same key, the template's replaces the default."""
    by_key: dict[str | None, list[Any]] = {}
    for item in items:
        if key := _key(item):
            by_key.setdefault(key, []).append(item)
    merged: list[Any] = []
    for default in defaults:
        same = by_key.pop(_key(default), [default])
        merged += [merge(default, item) for item in same] if deep else same
    return [*merged, *(item for item in items if not _key(item) or _key(item) in by_key)]


def _key(item: Any) -> str | None:
    """Return the key of an item of a list. Tolerations have none."""
    key: str | None = None
    if isinstance(item, Mapping):
        key = item.get("mountPath") or item.get("name")
    return key
