"""ConfigMaps that the job's file brings: files for the pods that mount them."""

from collections.abc import Mapping
from typing import Any

import pydantic

from tfparallel_operator.api import load

KIND = "ConfigMap"


class _Metadata(pydantic.BaseModel):
    name: str


class _ConfigMap(pydantic.BaseModel):
    """What files are made from; the rest is let through unread."""

    metadata: _Metadata
    data: dict[str, str] = pydantic.Field(default_factory=dict)


def parse(document: Mapping[str, Any]) -> tuple[str, Mapping[str, str]]:
    """Return the name of a ConfigMap and its files.

    Raises:
        SpecError: no files can be made from it.
    """
    try:
        found = _ConfigMap.model_validate(document)
    except pydantic.ValidationError as error:
        fault = error.errors()[0]
        path = ".".join(map(str, fault["loc"]))
        raise load.SpecError(
            f"ConfigMap of the job's file: {path}: received {fault['input']!r};"
            f" {fault['msg'].lower()}"
        ) from error
    if document.get("binaryData"):
        raise load.SpecError(
            f"ConfigMap {found.metadata.name!r}: binaryData needs a cluster: write text in data"
        )
    return found.metadata.name, found.data
