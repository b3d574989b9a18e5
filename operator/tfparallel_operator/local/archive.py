"""The archive of a job's source, from the ConfigMaps of the job's file."""

import hashlib
import io
import pathlib
import tarfile
import tempfile
import zlib

from tfparallel_operator.api import load
from tfparallel_operator.local import key_maps
from tfparallel_trainer.contract import source_code

_FIELD = "spec.trainer.source.archive"


def unpack(archive: source_code.Archive, config_maps: key_maps.KeyMaps) -> key_maps.KeyMap:
    """Return the files of an archive, by their paths in it.

    Raises:
        SpecError: the job's file does not bring all chunks, or they are no such archive.
    """
    content = b"".join(_chunk(name, config_maps) for name in archive.config_maps)
    received = hashlib.sha256(content).hexdigest()
    if received != archive.sha256:
        raise load.SpecError(
            f"{_FIELD}.sha256: received {archive.sha256}; the ConfigMaps of the job's file have"
            f" {received}: make the archive and its ConfigMaps again"
        )
    with tempfile.TemporaryDirectory() as folder:
        try:
            with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as files:
                files.extractall(folder, filter="data")
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise load.SpecError(
                f"{_FIELD}: it cannot be unpacked: {error}; give a tar archive compressed by gzip"
            ) from error
        root = pathlib.Path(folder)
        found = (path for path in root.rglob("*") if path.is_file())
        return {str(path.relative_to(root)): path.read_bytes() for path in found}


def _chunk(name: str, config_maps: key_maps.KeyMaps) -> bytes:
    chunk = config_maps.get(name, {}).get(source_code.CHUNK_KEY)
    if chunk is None:
        raise load.SpecError(
            f"{_FIELD}.configMaps: received {name!r}; no ConfigMap of the job's file has this name"
            f" and the key {source_code.CHUNK_KEY}: add it there after a line with ---, or remove"
            " source to take the code from the folder of the job's file"
        )
    return chunk.encode() if isinstance(chunk, str) else chunk
