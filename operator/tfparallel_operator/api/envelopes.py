"""What every object, list and event of an API server has, whatever its kind. Pure.

What answers in the place of an API server, such as a login page of a proxy, may be JSON, too.
"""

from typing import Any

from tfparallel_operator.api import raw_json

Object = dict[str, Any]

_LONGEST_VERSION = 20
"""Digits of a 64-bit number."""
_FAILURE = ("Status", "Failure")


def is_failure(document: Object) -> bool:
    """Whether a document reports a failed request, whatever the HTTP status is."""
    return (document.get("kind"), document.get("status")) == _FAILURE


def check_document(document: Any) -> Object:
    """Return any document of an API server.

    Raises:
        raw_json.BrokenError: it is not an object.
    """
    if not isinstance(document, dict):
        raise raw_json.BrokenError(f"it is a JSON {type(document).__name__}, and no object")
    return document


def check_object(document: Any) -> Object:
    """Return a stored object.

    Raises:
        raw_json.BrokenError: its metadata lack a name or a version.
    """
    metadata = _check_version(document)
    if not metadata.get("name") or not isinstance(metadata["name"], str):
        raise raw_json.BrokenError("its metadata have no name")
    return check_document(document)


def check_list(document: Any) -> Object:
    """Return a list, or a page of one.

    Raises:
        raw_json.BrokenError: its metadata lack a version, or an item is not an object.
    """
    _check_version(document)
    items = document.get("items", ())  # An empty list of metadata has null.
    if "items" not in document or not isinstance(items, list | None):
        raise raw_json.BrokenError("it has no items")
    for item in items or ():
        if not isinstance(check_document(item).get("metadata"), dict):
            raise raw_json.BrokenError("one of its items has no metadata")
    return check_document(document)


def check_event(event: Any) -> tuple[str, Object]:
    """Return the type and the object of an event of a watch.

    Raises:
        raw_json.BrokenError: one is missing, or the object's metadata are.
    """
    event = check_document(event)
    kind, document = event.get("type"), check_document(event.get("object"))
    if not isinstance(kind, str):
        raise raw_json.BrokenError("an event has no type")
    if kind == "ERROR":
        if not isinstance(document.get("code", 0), int):
            raise raw_json.BrokenError("an error has no code")
    elif kind == "BOOKMARK":
        _check_version(document)
    else:
        check_object(document)
    return kind, document


def _check_version(document: Any) -> Object:
    """Return the metadata of a document that has a version."""
    metadata = check_document(document).get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if not isinstance(version, str) or not version.isdecimal() or len(version) > _LONGEST_VERSION:
        raise raw_json.BrokenError("its metadata have no version")
    return check_document(metadata)
