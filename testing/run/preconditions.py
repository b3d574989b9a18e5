"""What a tier needs of this machine, looked at before the tier starts.

The programs of the clusters and the images are built here: when that fails, the reason is the
true one, be it Go, a registry or a disk.
"""

import dataclasses
import os
import pathlib
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable

from images import targets
from testing import paths
from testing.cluster import (
    binaries,
    console,
    coscheduling,
    folders,
    kind,
    kueue,
    packages,
    registry,
    settings,
)
from testing.image_cache import build
from testing.pytest_plugin.tiers import Part, Tier

GIB = 2**30
FREE_GIB = {Tier.UNIT: 0.2, Tier.PROCESS: 2, Tier.CLUSTER: 2, Tier.E2E: 6, Tier.LONG: 6}
"""What the tests of a tier write at most, with a margin."""

LOOPBACK = "127.0.0.1"


@dataclasses.dataclass(frozen=True)
class Obstacle:
    """Why a tier cannot run here."""

    tier: Tier
    reason: str

    def __str__(self) -> str:
        return f"The tier {self.tier.title} cannot run: {self.reason}"


def obstacles(tiers: Iterable[Tier], part: Part | None = None) -> list[Obstacle]:
    """What keeps tiers, or a part of them, from running: at most one reason for each tier."""
    candidates = (_find_obstacle(tier, part) for tier in sorted(tiers))
    return [obstacle for obstacle in candidates if obstacle is not None]


def _find_obstacle(tier: Tier, part: Part | None) -> Obstacle | None:
    store = () if part is Part.ESSENTIAL else (lacks_object_store,)
    checks: dict[Tier, tuple[Callable[[], str | None], ...]] = {
        Tier.PROCESS: (lacks_loopback, *store),
        Tier.CLUSTER: (lacks_loopback, lacks_cluster_programs),
        Tier.E2E: (lacks_container_rights, lacks_cluster_programs, lacks_node_and_images),
        Tier.LONG: (lacks_cluster_programs, lacks_long_programs),
    }
    for reason in (lacks_space(tier), *(check() for check in checks.get(tier, ()))):
        if reason is not None:
            return Obstacle(tier, reason)
    return None


def lacks_space(tier: Tier, places: Iterable[pathlib.Path] | None = None) -> str | None:
    """Say which disk is nearly full."""
    temporary = pathlib.Path(tempfile.gettempdir())
    for path in places or (temporary, folders.cache(), paths.ROOT):
        existing = next(part for part in (path, *path.parents) if part.exists())
        free = shutil.disk_usage(existing).free / GIB
        if free < FREE_GIB[tier]:
            return f"{path} has {free:.1f} GiB free of the {FREE_GIB[tier]} that it needs."
    return None


def lacks_loopback() -> str | None:
    """Say that this machine gives no port of loopback."""
    try:
        with socket.create_server((LOOPBACK, 0)):
            return None
    except OSError as error:
        return f"no port of {LOOPBACK} is to be had ({error})."


def lacks_container_rights() -> str | None:
    """Say that this user can start no containers."""
    if os.geteuid() == 0 or kind.docker_answers():
        return None
    return "containers need root or a Docker engine."


def lacks_object_store() -> str | None:
    """Build the server of object stores; say why that fails."""
    return _attempt(lambda: binaries.ensure(binaries.OBJECT_STORE))


def lacks_cluster_programs() -> str | None:
    """Build the programs of the clusters; say why that fails."""
    oldest = binaries.of_release(settings.Release.OLDEST, binaries.LIGHT)
    return _attempt(lambda: binaries.ensure([*binaries.LIGHT, registry.MODULE, *oldest]))


def lacks_long_programs() -> str | None:
    """Build the programs that only the long tier uses; say why that fails."""
    alpha_gangs = binaries.of_release(settings.Release.ALPHA_GANGS, binaries.LIGHT)
    return _attempt(lambda: binaries.ensure([coscheduling.MODULE, kueue.MODULE, *alpha_gangs]))


def lacks_node_and_images() -> str | None:
    """Install what a node needs and build the images; say why that fails."""

    def prepare() -> None:
        if os.geteuid() == 0:
            packages.ensure_node()
            binaries.ensure(binaries.FULL)
        build.ensure(targets.TARGETS.values())

    return _attempt(prepare)


def _attempt(prepare: Callable[[], object]) -> str | None:
    """Say in one sentence why this fails, if it does."""
    try:
        prepare()
    except (console.ClusterError, OSError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return " … ".join(dict.fromkeys((lines[0], lines[-1]))) if lines else repr(error)
    return None
