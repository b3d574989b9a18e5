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
    configuration = folder / "pip.conf"
    configuration.touch(mode=0o600)
    configuration.write_text(render(options), encoding="utf-8")
    certificates = Path(options.get("cert", ""))
    try:
        yield {
            "pip.conf": configuration,
            **({"ca.crt": certificates} if certificates.is_file() else {}),
        }
    finally:
        configuration.unlink()


def host_options() -> dict[str, str]:
    """What pip of this Python is configured with, by files and environment alike."""
    pip = ("-m", "pip", "config", "list")
    listing = programs.read([sys.executable, *pip]) or programs.read(["python3", *pip]) or ""
    options = {}
    for line in listing.splitlines():
        key, _, quoted = line.partition("=")
        # Later lines win, as they do in pip: files first, the environment last.
        options[key.rpartition(".")[2]] = quoted.strip("'\"")
    return options


def render(options: dict[str, str]) -> str:
    """The configuration file for the build: the same options, the certificates where they are."""
    passed = {key: options[key] for key in sorted(options.keys() - NOT_PASSED)}
    if "cert" in passed:
        passed["cert"] = CA_SECRET
    return "".join(["[global]\n", *(f"{key} = {value}\n" for key, value in passed.items())])
