"""Folders of the container tensorflow."""

CONFIG_DIR = "/etc/tfparallel/job"
TOKEN_DIR = "/etc/tfparallel/token"  # noqa: S105 (a path, not a secret)
WORKSPACE_DIR = "/workspace"
SOURCE_DIR = f"{WORKSPACE_DIR}/source"
PACKAGES_DIR = f"{WORKSPACE_DIR}/packages"
"""Packages of source.requirements."""
CHUNKS_DIR = "/etc/tfparallel/chunks"
"""The chunks of an archive, in the init container only."""
OUTPUT_DIR = "/output"

RESERVED = ("/etc/tfparallel", SOURCE_DIR, PACKAGES_DIR, OUTPUT_DIR)
"""Folders where a job must not mount a volume."""
