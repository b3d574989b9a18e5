"""Folders of the container that trains."""

CONFIG_DIR = "/etc/tfparallel/job"
TOKEN_DIR = "/etc/tfparallel/token"  # noqa: S105 (a path, not a secret)
WORKSPACE_DIR = "/workspace"
SOURCE_DIR = f"{WORKSPACE_DIR}/source"
PACKAGES_DIR = f"{WORKSPACE_DIR}/packages"
"""What source.requirements names is installed here."""
CHUNKS_DIR = "/etc/tfparallel/chunks"
"""The chunks of an archive; only the init container has them."""
OUTPUT_DIR = "/output"

RESERVED = ("/etc/tfparallel", SOURCE_DIR, PACKAGES_DIR, OUTPUT_DIR)
"""Where no volume of a job is mounted."""
