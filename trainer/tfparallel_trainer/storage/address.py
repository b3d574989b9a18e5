"""Addresses in object stores, such as s3://bucket/prefix."""

import dataclasses
import re
from typing import Self

_ADDRESS = re.compile(r"(?P<scheme>s3|gs)://(?P<bucket>[^/]+)(?:/(?P<prefix>.*))?")


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """A prefix or an object in a bucket."""

    scheme: str
    bucket: str
    prefix: str = ""
    """The key without slashes at its ends; empty for the whole bucket."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse s3://bucket/prefix or gs://bucket/prefix; a ValueError for other texts."""
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{text!r} is not an address in a bucket: use s3://BUCKET/PREFIX or "
                "gs://BUCKET/PREFIX"
            )
        return cls(match["scheme"], match["bucket"], (match["prefix"] or "").strip("/"))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")

    def child(self, name: str) -> Self:
        """The address of a key below this prefix."""
        return dataclasses.replace(self, prefix=f"{self.prefix}/{name}".strip("/"))


def is_address(text: str) -> bool:
    """Whether a text is an address of an object store or another service, not a path."""
    return "://" in text
