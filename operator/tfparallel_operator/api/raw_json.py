"""The parts of a job in the bytes of its JSON, however deep it nests and however large it is. Pure.

Python's readers of JSON recurse, and make an object of each value. So 1 MB of text may need 30 MB,
and nobody can read 1,100 levels. This module makes no values, and only searches the parts that may
be large. It relies on how an API server writes. The fields of an object are in the order of their
names. Managed fields have no field called `name`, and a string has no bare quote.
"""

import dataclasses
import re

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[{}\[\]]', re.DOTALL)
"""A string or a bracket."""
_SCALAR = re.compile(rb"[^,\]}]+")
_MANAGED_FIELDS, _END_OF_MANAGED_FIELDS = b"managedFields", b'],"name":"'
_SPEC, _STATUS = b',"spec":', b',"status":{'


class BrokenError(ValueError):
    """A text is not an object of an API server."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outline:
    """The parts of a job as JSON."""

    metadata: bytes
    """Without managed fields."""
    spec: bytes
    """Empty: there is none."""
    status: bytes
    """Empty: there is none."""


def read_outline(text: bytes) -> Outline:
    """Return the parts of a job.

    Raises:
        BrokenError: it has no metadata.
    """
    position = 1
    while text[position : position + 11] != b'"metadata":':  # apiVersion and kind stand before it
        position = _after(text, find_end(text, find_end(text, position) + 1))
    metadata, end = _read_metadata(text, position + 11)
    # What ends where the object ends is its own status, and not one within a part of it.
    begin = text.rfind(_STATUS, end)
    if begin >= 0 and find_end(text, begin + len(_STATUS) - 1) != len(text) - 1:
        begin = find_end(text, end + len(_SPEC)) if text.startswith(_SPEC, end) else end
        begin = begin if text.startswith(_STATUS, begin) else -1
    end_of_spec = begin if begin >= 0 else len(text) - 1
    status = text[begin + len(_STATUS) - 1 : -1] if begin >= 0 else b""
    return Outline(metadata, text[end:end_of_spec].removeprefix(_SPEC), status)


def _read_metadata(text: bytes, begin: int) -> tuple[bytes, int]:
    """Return the metadata without managed fields, and where they end."""
    parts: list[bytes] = []
    position = _enter(text, begin)
    while text[position : position + 1] != b"}":
        value = find_end(text, position) + 1
        is_managed = text[position + 1 : value - 2] == _MANAGED_FIELDS
        end = text.find(_END_OF_MANAGED_FIELDS, value) + 1 if is_managed else find_end(text, value)
        if end <= value:
            raise BrokenError("the metadata have no name")
        parts += [] if is_managed else [text[position:end]]
        position = _after(text, end)
    return b"{%b}" % b",".join(parts), position + 1


def find_end(text: bytes, begin: int) -> int:
    """Return the end of the value that begins at a position.

    Raises:
        BrokenError: no value begins there, or it has no end.
    """
    if scalar := _SCALAR.match(text, begin):
        if text[begin] not in b'"{[':
            return scalar.end()
        depth = 0
        for token in _TOKEN.finditer(text, begin):
            depth += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(token[0], 0)
            if not depth:
                return token.end()
    raise BrokenError(f"the JSON breaks off at byte {begin}")


def _enter(text: bytes, begin: int) -> int:
    if text[begin : begin + 1] != b"{":
        raise BrokenError(f"no object begins at byte {begin}")
    return begin + 1


def _after(text: bytes, end: int) -> int:
    """Return the position after a value and the comma that follows it."""
    return end + (text[end : end + 1] == b",")
