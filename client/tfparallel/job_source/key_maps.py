"""ConfigMaps and Secrets in the job's file, which give its pods files and variables."""

import base64
import binascii
import enum
from collections.abc import Iterable, Mapping
from typing import Any

import pydantic

from tfparallel_operator.api import load

KeyMap = Mapping[str, str | bytes]
"""Content by key: text, or bytes that are no text."""

KeyMaps = Mapping[str, KeyMap]
"""ConfigMaps, or Secrets, by name."""


class ObjectKind(enum.StrEnum):
    """The kinds of objects that hold keys."""

    CONFIG_MAP = "ConfigMap"
    SECRET = "Secret"  # noqa: S105 (a kind, not a secret)


class _Metadata(pydantic.BaseModel):
    name: str


class _ConfigMap(pydantic.BaseModel):
    """The fields from which files are made. Other fields are not read."""

    metadata: _Metadata
    data: dict[str, str] = pydantic.Field(default_factory=dict)
    binaryData: dict[str, str] = pydantic.Field(default_factory=dict)  # noqa: N815 (its own name)


class _Secret(pydantic.BaseModel):
    metadata: _Metadata
    data: dict[str, str] = pydantic.Field(default_factory=dict)
    stringData: dict[str, str] = pydantic.Field(default_factory=dict)  # noqa: N815 (its own name)


def of_kind(kind: ObjectKind, documents: Iterable[Mapping[str, Any]]) -> KeyMaps:
    """Return the objects of a kind among the documents of a file, by name.

    Raises:
        SpecError: no files can be made from one.
    """
    matches = (document for document in documents if document.get("kind") == kind)
    return dict(_parse(kind, document) for document in matches)


def _parse(kind: ObjectKind, document: Mapping[str, Any]) -> tuple[str, KeyMap]:
    try:
        if kind is ObjectKind.SECRET:
            secret = _Secret.model_validate(document)
            name, text, encoded = secret.metadata.name, secret.stringData, secret.data
        else:
            config_map = _ConfigMap.model_validate(document)
            name, text, encoded = config_map.metadata.name, config_map.data, config_map.binaryData
    except pydantic.ValidationError as error:
        fault = error.errors()[0]
        path = ".".join(map(str, fault["loc"]))
        raise load.SpecError(
            f"{kind} of the job's file: {path}: received {fault['input']!r}; {fault['msg'].lower()}"
        ) from error
    return name, {**{key: _decoded(kind, name, key, encoded[key]) for key in encoded}, **text}


def _decoded(kind: ObjectKind, name: str, key: str, value: str) -> str | bytes:
    try:
        content = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise load.SpecError(f"{kind} {name!r}: {key} is not base64: encode its bytes") from error
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content
