"""The gate: how large and how deep a job may be, and which numbers and texts it may have. Pure.

Everything that is read of a job from an API server passes here before anything else looks at it.
A job that is beyond a limit comes out without its spec or its status, and with a sentence that says
so. Statuses of a job's objects pass here, too.
"""

import re
from collections.abc import Iterable
from typing import Any

import orjson

from tfparallel_operator.api import envelopes, names, problems, raw_json
from tfparallel_trainer.contract import plain_text

Body = dict[str, Any]
_Fault = tuple[tuple[str | int, ...], str]
"""A location, and the problem there."""

MAX_SPEC_BYTES = 262_144
"""Maximum size of a spec as JSON."""
MAX_STATUS_BYTES = 131_072
"""Maximum size of a status as JSON. With 5,000 workers, each restarted alone, it takes 95,000. A
pod's takes some 5,000."""
MAX_DEPTH = 64
"""Maximum depth of a spec or a status. The deepest field of a pod has a depth of about 20."""
MAX_VALUES = 20_000
"""Maximum number of fields and items of a spec or a status."""
MAX_TEXT_LETTERS = 4_096
"""Characters of a text of a pod's status that are kept: as many as of a termination message."""
MAX_NAME_LETTERS = 1_024
"""Maximum length of the name of a field, such as a label."""
MAX_NUMBER = 2**63 - 1
"""Largest integer that the API server and all its clients carry without loss."""
MAX_POD_BYTES = 33_554_432
"""Maximum size of the templates of all replicas together, as JSON."""

PROBLEM = "problem"
"""The field that says why a job has no spec. No API server stores a field of this name."""
STATUS_PROBLEM = "statusProblem"
"""The field that says why a job has no status. No API server stores a field of this name."""

REPORTED = ("progress", "placement", "verification", "separateTraining")
"""The fields of a job's status that its coordinator reports. Another field manager owns them."""

_KIND = {"apiVersion": names.API_VERSION, "kind": names.KIND}
_TOO_LARGE = "it has {} bytes as JSON, and the operator reads at most {}. {}"
_REMEDY = "Put long texts into a ConfigMap, and refer to it"
_REMEDY_OF_STATUS = "Shorten it, or delete the object"
_TOO_DEEP = f"it nests deeper than {MAX_DEPTH} levels, which the operator does not read. Flatten it"
_TOO_MANY = (
    f"the {{}} has more than {MAX_VALUES} fields and items, which is what the operator reads."
    " Shorten its lists"
)
_TOO_COSTLY = (
    "all replicas together have {} bytes of templates as JSON, and may have {}. Shorten the"
    " template, or give fewer replicas"
)
_SPEC, _STATUS = "spec", "status"
_COUNTS = ("replicas", "maxReplicas")
_LONGEST_PATH = 200
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]")
"""Characters that no program needs. It may need tabs, newlines and colors of a terminal."""
_EVENT = re.compile(rb'\{"type":"(ADDED|MODIFIED|DELETED)","object":')
_ITEMS, _END_OF_ITEMS = b'"items":[', b'],"kind":"'


def read_job(text: bytes) -> Body:
    """Parse a job of an API server, as `admit` does.

    Raises:
        raw_json.BrokenError: the text is not an object of an API server.
    """
    if len(text) <= MAX_SPEC_BYTES:
        try:
            return admit(envelopes.check_document(orjson.loads(text)))
        except orjson.JSONDecodeError:
            pass  # A part of it nests deeper than the parser allows.
    outline = raw_json.read_outline(text.strip())
    try:
        body: Body = {**_KIND, "metadata": orjson.loads(outline.metadata)}
    except orjson.JSONDecodeError as error:
        raise raw_json.BrokenError(f"the metadata are no JSON: {error}") from error
    body |= _read_part(_SPEC, outline.spec, MAX_SPEC_BYTES, PROBLEM, _REMEDY)
    status = (outline.status, MAX_STATUS_BYTES, STATUS_PROBLEM, _REMEDY_OF_STATUS)
    return admit(body | _read_part(_STATUS, *status))


def _read_part(name: str, text: bytes, limit: int, problem: str, remedy: str) -> Body:
    """Return a job's spec or status as a field, or a field that says why it is missing."""
    if len(text) > limit:
        return {problem: f"{name}: {_TOO_LARGE.format(len(text), limit, remedy)}"}
    try:
        return {name: orjson.loads(text)} if text else {}
    except orjson.JSONDecodeError:
        return {problem: f"{name}: {_TOO_DEEP}"}


def read_event(line: bytes) -> tuple[str, Body]:
    """Return the type and the object of an event of a watch of jobs.

    Raises:
        raw_json.BrokenError: the line is not an event of an API server.
    """
    if len(line) <= MAX_SPEC_BYTES:
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError:
            pass
        else:
            kind, document = envelopes.check_event(event)
            return kind, admit(document) if kind in ("ADDED", "MODIFIED", "DELETED") else document
    begin = _EVENT.match(line)
    if begin is None:
        raise raw_json.BrokenError(f"a line of {len(line)} bytes is no event")
    job = read_job(line[begin.end() :].rstrip()[:-1])
    return envelopes.check_event({"type": begin[1].decode(), "object": job})


def read_list_of_one(text: bytes) -> Body:
    """Return a list that has at most one job.

    Raises:
        raw_json.BrokenError: the text is not a list of an API server.
    """
    begin, end = text.find(_ITEMS, 0, 256) + len(_ITEMS), text.rfind(_END_OF_ITEMS)
    if not len(_ITEMS) <= begin <= end:
        raise raw_json.BrokenError("the answer is no list")
    try:
        fields = orjson.loads(b"{" + text[end + 2 :])
    except orjson.JSONDecodeError as error:
        raise raw_json.BrokenError(f"the metadata of the list are no JSON: {error}") from error
    items = [read_job(text[begin:end])] if end > begin else []
    return {**fields, "items": items}


def admit(body: Body) -> Body:
    """Return a job, without an excessive spec or status and with a sentence that says why."""
    status, spec = body.get(_STATUS), body.get(_SPEC)
    if message := find_excess(status):
        body = {**body, _STATUS: _without_reports(status)}
        if find_excess(body[_STATUS]):
            del body[_STATUS]
            body[STATUS_PROBLEM] = message
    fault = _find_fault(spec, 1, [0], _SPEC) or _find_cost(spec)
    if fault is None:
        return body
    admitted = {name: value for name, value in body.items() if name != "spec"}
    return admitted | {PROBLEM: _describe(_SPEC, fault)}


def _without_reports(status: Any) -> Any:
    """Return a status without the reports of pods, which must not block decisions."""
    if not isinstance(status, dict):
        return status
    return {name: value for name, value in status.items() if name not in REPORTED}


class BeyondLimitsError(ValueError):
    """A part of an object exceeds a limit. The message says which."""


def find_excess(status: Any) -> str:
    """Say which limit a status exceeds; empty: none.

    Names and texts may have control characters: a program may write them when it ends. Who shows
    such a text escapes it.
    """
    if not status or _is_plain(status):
        return ""
    if not isinstance(status, dict):
        return "status: it is no object. Correct it, or delete the object"
    if fault := _find_fault(status, 1, [0], _STATUS):
        return _describe(_STATUS, fault)
    try:
        size = len(orjson.dumps(status))
    except orjson.JSONEncodeError:  # A lone surrogate, or a number that is too large.
        return "status: it is no JSON that can be written. Correct it, or delete the object"
    if size > MAX_STATUS_BYTES:
        return f"status: {_TOO_LARGE.format(size, MAX_STATUS_BYTES, _REMEDY_OF_STATUS)}"
    return ""


def _is_plain(status: Any) -> bool:
    """Whether a status is certainly within the limits. To check each value takes far longer."""
    try:
        text = orjson.dumps(status, option=orjson.OPT_STRICT_INTEGER)
    except orjson.JSONEncodeError:
        return False
    parts = text.count(b"{") + text.count(b"[")  # At least its depth.
    is_small = len(text) <= MAX_STATUS_BYTES and parts + text.count(b",") <= MAX_VALUES
    return is_small and parts <= MAX_DEPTH and isinstance(status, dict)


def cut(text: Any) -> str:
    """Cut a text of a status to the maximum length."""
    return str(text)[:MAX_TEXT_LETTERS]


def cut_texts(value: Any, depth: int = 1) -> Any:
    """Return a part of a status with its texts cut, and without values that nest too deep."""
    if isinstance(value, str):
        return cut(value)
    if not isinstance(value, dict | list):
        return value
    if depth > MAX_DEPTH:
        return None
    if isinstance(value, dict):
        return {name: cut_texts(part, depth + 1) for name, part in value.items()}
    return [cut_texts(part, depth + 1) for part in value]


def _describe(part: str, fault: _Fault) -> str:
    location, message = fault
    path = problems.path((part, *location))
    if len(path) > _LONGEST_PATH:
        path = f"{path[:_LONGEST_PATH]}..."
    return f"{plain_text.escape(path)}: {message}"


def _find_fault(value: Any, depth: int, values: list[int], part: str) -> _Fault | None:
    """Return the problem of an object or a list that exceeds a limit; None: it doesn't.

    Args:
        values: a counter of fields and items so far.
        part: spec or status.
    """
    if not isinstance(value, dict | list):
        return None
    values[0] += len(value)
    if depth > MAX_DEPTH:
        return (), _TOO_DEEP
    if values[0] > MAX_VALUES:
        return (), _TOO_MANY.format(part)
    pairs: Iterable[tuple[Any, Any]] = enumerate(value)
    if isinstance(value, dict):
        pairs = value.items()
        field_names = [*value, value["name"]] if isinstance(value.get("name"), str) else value
        for name in field_names if part == _SPEC else ():
            is_plain = len(name) <= MAX_NAME_LETTERS and name.isprintable()
            if not is_plain and (message := _find_fault_of_name(name)):
                return (), message
    for key, inner in pairs:
        if isinstance(inner, dict | list):
            if fault := _find_fault(inner, depth + 1, values, part):
                return (key, *fault[0]), fault[1]
        elif isinstance(inner, str):
            if part == _STATUS or inner.isprintable():
                continue
            if control := _CONTROL.search(inner):
                shown = plain_text.escape(control[0])
                return (key,), f"the text has the control character {shown}. Remove it"
        elif isinstance(inner, int | float) and not -MAX_NUMBER <= inner <= MAX_NUMBER:
            return (key,), f"{inner} is beyond {MAX_NUMBER:g}. Write a smaller number"
    return None


def _find_fault_of_name(name: str) -> str:
    if len(name) > MAX_NAME_LETTERS:
        return f"a name has {len(name)} letters, and may have {MAX_NAME_LETTERS}. Shorten it"
    if control := plain_text.find_control(name):
        return f"a name has the control character {control}. Remove it"
    return ""


def _find_cost(spec: Any) -> _Fault | None:
    """Return the problem of templates that are too large together; None: they aren't."""
    roles = spec.get("tfReplicaSpecs") if isinstance(spec, dict) else None
    if not isinstance(roles, dict):
        return None
    total = 0
    for role in roles.values():
        counts = [role.get(name) for name in _COUNTS] if isinstance(role, dict) else []
        most = max((count for count in counts if isinstance(count, int)), default=1)
        if most > MAX_POD_BYTES // MAX_SPEC_BYTES:
            parts = (role.get("template"), spec.get("trainer"))
            total += most * sum(len(orjson.dumps(part)) for part in parts)
    if total <= MAX_POD_BYTES:
        return None
    return ("tfReplicaSpecs",), _TOO_COSTLY.format(total, MAX_POD_BYTES)
