"""Sources of jobs for tests: wheels, archives, and the ConfigMaps of their chunks."""

import base64
import hashlib
import io
import pathlib
import tarfile
import zipfile
from collections.abc import Mapping
from typing import Any

from tfparallel_trainer.contract import source_code


def wheel(name: str, version: str, *needs: str) -> tuple[str, bytes]:
    """Return the file name and the content of a wheel with one module."""
    information = f"{name}-{version}.dist-info"
    about = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{information}/METADATA": "\n".join(
            [*about, *(f"Requires-Dist: {requirement}" for requirement in needs)]
        ),
        f"{information}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in [*files, f"{information}/RECORD"])
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for file, text in {**files, f"{information}/RECORD": record}.items():
            archive.writestr(file, text)
    return f"{name}-{version}-py3-none-any.whl", content.getvalue()


def write_wheel(folder: pathlib.Path, name: str, version: str, *needs: str) -> None:
    """Write a wheel into a folder."""
    file, content = wheel(name, version, *needs)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(content)


def archive(files: Mapping[str, str | bytes], *others: tarfile.TarInfo) -> bytes:
    """Return an archive of files, and of members without content."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as written:
        for name, text in files.items():
            data = text.encode() if isinstance(text, str) else text
            member = tarfile.TarInfo(name)
            member.size = len(data)
            written.addfile(member, io.BytesIO(data))
        for member in others:
            written.addfile(member)
    return content.getvalue()


def in_config_maps(
    name: str, files: Mapping[str, str | bytes]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return `source` of a job with an archive in two chunks, and their ConfigMaps."""
    content = archive(files)
    middle = len(content) // 2
    names = [f"{name}-{number}" for number in range(2)]
    config_maps = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name_of_map},
            "binaryData": {source_code.CHUNK_KEY: base64.b64encode(chunk).decode()},
        }
        for name_of_map, chunk in zip(names, (content[:middle], content[middle:]), strict=True)
    ]
    sha256 = hashlib.sha256(content).hexdigest()
    return {"archive": {"configMaps": names, "sha256": sha256}}, config_maps
