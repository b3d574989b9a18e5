"""The pip configuration of this machine as secrets of a build: no image keeps it."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from images import programs

CA_SECRET = "/run/secrets/ca.crt"  # noqa: S105 - a path
"""Where the Dockerfile mounts the certificates."""

NOT_PASSED = {"find-links", "cache-dir", "no-index"}
"""Options that name folders of the host, or need them: a build sees none of these."""


@contextlib.contextmanager
def secrets(folder: Path) -> Iterator[dict[str, Path]]:
    """Files by the secret ids of the Dockerfile; those that were made here vanish afterwards."""
    options = host_options()
    certificate_files = {}
    certificates = options.get("cert")
    if certificates is not None and Path(certificates).is_file():
        certificate_files["ca.crt"] = Path(certificates)
    configuration = folder / "pip.conf"
    configuration.write_text(render(options), encoding="utf-8")
    configuration.chmod(0o600)
    try:
        yield {"pip.conf": configuration, **certificate_files}
    finally:
        configuration.unlink()


def host_options() -> dict[str, str]:
    """What pip of this Python is configured with, by files and environment alike."""
    listing = programs.read([sys.executable, "-m", "pip", "config", "list"])
    if listing is None:
        listing = programs.read(["python3", "-m", "pip", "config", "list"])
    options = {}
    for line in (listing or "").splitlines():
        key, _, quoted = line.partition("=")
        # Later lines win, as they do in pip: files first, the environment last.
        options[key.rpartition(".")[2]] = quoted.strip("'\"")
    return options


def render(options: dict[str, str]) -> str:
    """The configuration file for the build: the same options, the certificates where they are."""
    lines = ["[global]"]
    for key, value in sorted(options.items()):
        if key in NOT_PASSED:
            continue
        lines.append(f"{key} = {CA_SECRET if key == 'cert' else value}")
    return "\n".join(lines) + "\n"
