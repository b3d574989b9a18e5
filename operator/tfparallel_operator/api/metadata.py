"""The metadata of a manifest, with the rules of the API server."""

import re
import secrets
from collections.abc import Mapping
from typing import Annotated, Any

import pydantic
from pydantic import alias_generators

_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]"
_DOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_QUALIFIED_NAME = re.compile(rf"((?P<domain>{_DOMAIN})/)?{_NAME}")
_LABEL = re.compile(rf"({_NAME})?")
_SUBDOMAIN = re.compile(_DOMAIN)
_TIME = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[-+]\d\d:\d\d)$"
_LONGEST_DOMAIN = 253
_ANNOTATION_BYTES = 256 * 1024
_GENERATED_CHARACTERS = "bcdfghjklmnpqrstvwxz2456789"
_GENERATED_LENGTH = 5
_LONGEST_NAME = 63


def generate_name(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a manifest with a name of its metadata.generateName, if it has no other."""
    metadata = document.get("metadata")
    if not isinstance(metadata, Mapping) or metadata.get("name"):
        return document
    base = metadata.get("generateName")
    if not base or not isinstance(base, str):
        return document
    ending = "".join(secrets.choice(_GENERATED_CHARACTERS) for _ in range(_GENERATED_LENGTH))
    name = base[: _LONGEST_NAME - _GENERATED_LENGTH] + ending
    return {**document, "metadata": {**metadata, "name": name}}


def _check_key(key: str) -> str:
    parts = _QUALIFIED_NAME.fullmatch(key)
    if parts is None or len(parts["domain"] or "") > _LONGEST_DOMAIN:
        raise ValueError("write NAME or DOMAIN/NAME, with a name of at most 63 letters and digits")
    return key


def _check_annotation_key(key: str) -> str:
    _check_key(key.lower())
    return key


def _check_label(text: str) -> str:
    if _LABEL.fullmatch(text) is None:
        raise ValueError(
            "write at most 63 letters, digits, '-', '_' and '.', with a letter or digit at each end"
        )
    return text


def _check_size(annotations: Mapping[str, str]) -> Mapping[str, str]:
    if sum(len(f"{key}{text}".encode()) for key, text in annotations.items()) > _ANNOTATION_BYTES:
        raise ValueError("annotations have at most 256 KiB: shorten them")
    return annotations


def _check_prefix(text: str) -> str:
    # The API server replaces a dash at the end, and the character before it, with a letter.
    checked = f"{text[:-2]}a" if len(text) > 1 and text.endswith("-") else text
    if text and (_SUBDOMAIN.fullmatch(checked) is None or len(checked) > _LONGEST_DOMAIN):
        raise ValueError("write lower-case letters, digits and '-', such as digits-")
    return text


def _fill_null(text: Any) -> Any:
    return "" if text is None else text


_Key = Annotated[str, pydantic.AfterValidator(_check_key)]
_AnnotationKey = Annotated[str, pydantic.AfterValidator(_check_annotation_key)]
_Text = Annotated[str, pydantic.BeforeValidator(_fill_null)]
_Label = Annotated[_Text, pydantic.AfterValidator(_check_label)]
_Annotations = Annotated[dict[_AnnotationKey, _Text], pydantic.AfterValidator(_check_size)]
_Time = Annotated[str, pydantic.Field(pattern=_TIME)]


class ManifestMetadata(pydantic.BaseModel):
    """Fields of the metadata of any object. A null field counts as absent."""

    model_config = pydantic.ConfigDict(
        alias_generator=alias_generators.to_camel, extra="forbid", frozen=True, strict=True
    )

    name: str | None = None
    generate_name: Annotated[str, pydantic.AfterValidator(_check_prefix)] | None = None
    namespace: str | None = None
    labels: dict[_Key, _Label] | None = None
    annotations: _Annotations | None = None
    finalizers: list[_Key] | None = None
    owner_references: list[dict[str, Any]] | None = None
    managed_fields: list[dict[str, Any]] | None = None
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
    self_link: str | None = None
    creation_timestamp: _Time | None = None
    deletion_timestamp: _Time | None = None
    deletion_grace_period_seconds: int | None = None
