"""The programs that can build a Dockerfile: Docker where an engine answers, else buildah."""

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from testing.images import console, debian, inputs

BUILDAH_COMMANDS = ("buildah", "debootstrap")
BASE = "localhost/tfparallel-base"


class Engine(Protocol):
    """Builds one target of the Dockerfile and writes it to a docker-archive."""

    def base(self) -> str:
        """What the images are built on, as part of the key of the cache."""

    def build(
        self, target: inputs.Target, secrets: Mapping[str, Path], archive: Path, log: Path
    ) -> None:
        """Build the target and write the archive."""


class Docker:
    """Docker's own builder, which pulls the base image that the Dockerfile names."""

    def base(self) -> str:
        return "docker"

    def build(
        self, target: inputs.Target, secrets: Mapping[str, Path], archive: Path, log: Path
    ) -> None:
        build = ["docker", "build", "--progress=plain", *common_flags(target, secrets)]
        environment = {"DOCKER_BUILDKIT": "1"}
        console.run(
            [*build, str(inputs.ROOT)],
            log,
            shown=lambda line: "] RUN" in line or "] COPY" in line,
            environment=environment,
        )
        save = ["docker", "save", "--output", str(archive), target.reference]
        console.run(save, log, shown=bool)


class Buildah:
    """buildah without an engine or a registry, on a base that debootstrap makes.

    Its store is a folder of the cache, so that layers survive between runs and nothing else on
    the machine is touched. Isolation `chroot` needs neither cgroups nor a runtime.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        stores = ("--root", str(folder / "storage"), "--runroot", str(folder / "run"))
        self._command = ("buildah", *stores)

    def base(self) -> str:
        return debian.fingerprint()

    def build(
        self, target: inputs.Target, secrets: Mapping[str, Path], archive: Path, log: Path
    ) -> None:
        base = self._ensure_base(log)
        build = [*self._command, "bud", "--isolation", "chroot", "--layers", "--pull-never"]
        build += ["--build-arg", f"BASE_IMAGE={base}", *common_flags(target, secrets)]
        console.run([*build, str(inputs.ROOT)], log, shown=lambda line: "STEP" in line)
        console.say(f"writing {archive.name}")
        push = [*self._command, "push", "--quiet", target.reference]
        console.run([*push, f"docker-archive:{archive}:{target.reference}"], log, shown=bool)

    def _ensure_base(self, log: Path) -> str:
        tag = hashlib.sha256(debian.fingerprint().encode()).hexdigest()[:16]
        name = f"{BASE}:{tag}"
        if console.read([*self._command, "images", "--quiet", name]):
            return name
        console.say("making the base with debootstrap")
        root = debian.make_root(self._folder, log)
        try:
            container = self._read("from", "scratch")
            self._read("add", "--quiet", container, str(root), "/")
            self._read("config", "--cmd", "python3", container)
            self._read("commit", "--quiet", container, name)
            self._read("rm", container)
        finally:
            shutil.rmtree(root)
        return name

    def _read(self, *arguments: str) -> str:
        answer = console.read([*self._command, *arguments])
        if answer is None:
            raise console.ImageError(f"buildah {' '.join(arguments[:2])} … failed")
        return answer


def common_flags(target: inputs.Target, secrets: Mapping[str, Path]) -> list[str]:
    """The flags of a build that Docker and buildah share."""
    flags = ["--target", target.name, "--tag", target.reference]
    flags += ["--build-arg", f"VERSION={target.version}"]
    for name, file in secrets.items():
        flags += ["--secret", f"id={name},src={file}"]
    return flags


def docker_answers() -> bool:
    """Whether there is a Docker engine behind the command."""
    return bool(console.read(["docker", "version", "--format", "{{.Server.Version}}"]))
