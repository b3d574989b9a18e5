"""The archive of a job's source, from the ConfigMaps of the job's file."""

from tfparallel.job_source import key_maps
from tfparallel_operator.api import load
from tfparallel_trainer.contract import source_code

_FIELD = "spec.trainer.source.archive"


def unpack(archive: source_code.Archive, config_maps: key_maps.KeyMaps) -> key_maps.KeyMap:
    """Return the files of an archive, by their paths in it.

    Raises:
        SpecError: the job's file does not bring all chunks, or they are no such archive.
    """
    chunks = [_chunk(name, config_maps) for name in archive.config_maps]
    try:
        content = source_code.join(chunks, archive.sha256)
        return {file.path: b"".join(file.blocks) for file in source_code.read_files(content)}
    except ValueError as error:
        raise load.SpecError(f"{_FIELD}: {error}; archive the source again") from error


def _chunk(name: str, config_maps: key_maps.KeyMaps) -> bytes:
    chunk = config_maps.get(name, {}).get(source_code.CHUNK_KEY)
    if chunk is None:
        raise load.SpecError(
            f"{_FIELD}.configMaps: received {name!r}; no ConfigMap of the job's file has this name"
            f" and the key {source_code.CHUNK_KEY}. Add it there after a line with ---, or remove"
            " source to take the code from the folder of the job's file"
        )
    return chunk.encode() if isinstance(chunk, str) else chunk
