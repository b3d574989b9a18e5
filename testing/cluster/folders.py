"""Where built programs and running clusters live."""

import os
from pathlib import Path

SOURCE = Path(__file__).resolve().parent


def cache() -> Path:
    """The one folder outside the repository that this package writes to by default."""
    chosen = os.environ.get("TFPARALLEL_CACHE")
    if chosen:
        return Path(chosen).resolve()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).resolve() / "tfparallel"


def clusters() -> Path:
    """Clusters without a folder of their own are found by name in here."""
    return cache() / "clusters"
