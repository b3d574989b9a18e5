"""What a process reads of results that are there."""

import io
import pathlib
import struct
import zipfile

import pytest

from tfparallel_trainer.reporting import results


def model() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("config.json", "{}")
    return content.getvalue()


def of_a_later_zip(content: bytes) -> bytes:
    """The directory at the end of an archive that asks for a version of zip that none has."""
    at = content.index(b"PK\x01\x02") + 6
    return content[:at] + struct.pack("<H", 255) + content[at + 2 :]


def with_another_name(content: bytes) -> bytes:
    """Its names are said to be UTF-8, and are not."""
    at = content.index(b"PK\x01\x02")
    flagged = content[: at + 8] + struct.pack("<H", 0x800) + content[at + 10 :]
    head, name, tail = flagged.rpartition(b"config.json")
    return head + name.replace(b"c", b"\xff", 1) + tail


@pytest.mark.parametrize(
    ("content", "opens"),
    [
        (model(), True),
        (b"", False),
        (model()[:-10], False),
        (bytes(1000), False),
        (of_a_later_zip(model()), False),
        (with_another_name(model()), False),
    ],
    ids=["whole", "empty", "cut", "zeros", "of a later zip", "another name"],
)
def test_a_model_that_does_not_open_counts_as_none(
    tmp_path: pathlib.Path, content: bytes, opens: bool
) -> None:
    path = tmp_path / "model.keras"
    path.write_bytes(content)
    assert results._opens(path) == opens
