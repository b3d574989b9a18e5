"""Images on the node: written by hand when they hold one program, and imported without a pull."""

import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from testing.cluster import console, process

CONTAINERD_NAMESPACE = "k8s.io"


def write_archive(path: Path, name: str, program: Path) -> Path:
    """A docker-archive of an image that holds nothing but one static program."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as content:
        _add(content, program.name, program.read_bytes(), 0o755)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": _architecture(),
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(path, mode="w") as archive:
        _add(archive, "layer.tar", layer.getvalue(), 0o644)
        _add(archive, "config.json", json.dumps(config).encode(), 0o644)
        _add(archive, "manifest.json", json.dumps(manifest).encode(), 0o644)
    return path


def load(prefix: Sequence[str], archive: Path) -> None:
    """Import a docker-archive into the node's containerd."""
    command = [*prefix, "ctr", "--namespace", CONTAINERD_NAMESPACE, "images", "import", "-"]
    with archive.open("rb") as content:
        done = subprocess.run(
            command,
            stdin=content,
            env=process.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise console.ClusterError(f"Importing {archive} failed: {done.stderr.strip()}")


def _architecture() -> str:
    machine = os.uname().machine
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    entry.mode = mode
    archive.addfile(entry, io.BytesIO(content))
