"""The programs that build a Dockerfile: docker, podman and buildah."""

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from images import programs, targets

BASE_IMAGE = "python:3.11-slim"
LOOPBACK = ("localhost", "127.", "[::1]")


@dataclasses.dataclass(frozen=True)
class Build:
    """One image as it is asked for."""

    target: targets.Target
    reference: str
    base_image: str = BASE_IMAGE
    requirements: str = ""
    """The trainer's; empty: those that the Dockerfile names."""
    secrets: Mapping[str, Path] = dataclasses.field(default_factory=dict)

    @property
    def flags(self) -> list[str]:
        """What all engines understand."""
        flags = ["--target", self.target.name, "--tag", self.reference]
        flags += ["--build-arg", f"BASE_IMAGE={self.base_image}"]
        flags += ["--build-arg", f"VERSION={self.target.version}"]
        if self.requirements:
            flags += ["--build-arg", f"TRAINER_REQUIREMENTS={self.requirements}"]
        for name, file in self.secrets.items():
            flags += ["--secret", f"id={name},src={file}"]
        return flags


@dataclasses.dataclass(frozen=True)
class Engine:
    """A program that builds, pushes and writes images."""

    name: str
    command: tuple[str, ...]
    build_command: tuple[str, ...]
    has_command: tuple[str, ...]
    """Succeeds when the image whose name follows is here."""
    answers_command: tuple[str, ...]
    """Succeeds when the program can work."""
    step: str
    """What the lines of a build's output hold that report a step."""

    def answers(self) -> bool:
        """Whether the program is installed and its engine runs."""
        return programs.read([*self.command, *self.answers_command]) is not None

    def has(self, image: str) -> bool:
        """Whether an image is here."""
        return programs.read([*self.command, *self.has_command, image]) is not None

    def build(self, build: Build, log: Path) -> None:
        """Build an image.

        Raises:
            ImageError: the base image is not to be had, or a step fails.
        """
        self._ensure_base(build.base_image, log)
        try:
            programs.run(
                [*self.command, *self.build_command, *build.flags, str(targets.ROOT)],
                log,
                shown=lambda line: self.step in line,
                environment={"DOCKER_BUILDKIT": "1"},
            )
        except programs.ProgramError as error:
            raise programs.ImageError(
                f"{self.name} cannot build the image of the {build.target.name}: {error}. "
                f"The whole output is in {log}."
            ) from error

    def push(self, reference: str, log: Path) -> None:
        """Push an image to the registry of its name.

        Raises:
            ImageError: the registry cannot be reached, or refuses it.
        """
        host = reference.partition("/")[0]
        command = [*self.command, "push"]
        if self.name != DOCKER.name and host.startswith(LOOPBACK):
            command.append("--tls-verify=false")  # docker asks no registry on loopback for TLS
        try:
            programs.run([*command, reference], log, shown=lambda _: False)
        except programs.ProgramError as error:
            raise programs.ImageError(
                f"{self.name} cannot push {reference}: {error}. See that REGISTRY is right, and "
                f"that `{self.name} login {host}` was run by a user who may push there."
            ) from error

    def write(self, reference: str, archive: Path, log: Path) -> None:
        """Write an image to a docker-archive.

        Raises:
            ImageError: it cannot be written.
        """
        command = ["save", "--output", str(archive), reference]
        if self.name == PODMAN.name:
            command[1:1] = ["--format", "docker-archive"]
        if self.name == BUILDAH.name:
            command = ["push", "--quiet", reference, f"docker-archive:{archive}:{reference}"]
        try:
            programs.run([*self.command, *command], log, shown=lambda _: False)
        except programs.ProgramError as error:
            raise programs.ImageError(
                f"{self.name} cannot write {reference} to {archive}: {error}."
            ) from error

    def _ensure_base(self, image: str, log: Path) -> None:
        if self.has(image):
            return
        programs.say(f"pulling {image}")
        try:
            programs.run([*self.command, "pull", image], log, shown=lambda _: False)
        except programs.ProgramError as error:
            raise programs.ImageError(
                f"{self.name} cannot pull the base image {image}: {error}. Set BASE_IMAGE to a "
                "Debian-like image with Python 3.11 or newer that it can pull or has."
            ) from error


DOCKER = Engine(
    name="docker",
    command=("docker",),
    build_command=("build", "--progress=plain"),
    has_command=("image", "inspect", "--format", "{{.Id}}"),
    answers_command=("version", "--format", "{{.Server.Version}}"),
    step="] ",
)
PODMAN = Engine(
    name="podman",
    command=("podman",),
    build_command=("build", "--layers"),
    has_command=("image", "exists"),
    answers_command=("info", "--format", "{{.Host.Arch}}"),
    step="STEP",
)
BUILDAH = Engine(
    name="buildah",
    command=("buildah",),
    build_command=("build", "--layers"),
    has_command=("inspect", "--type", "image", "--format", "{{.FromImageID}}"),
    answers_command=("version",),
    step="STEP",
)
ENGINES = {engine.name: engine for engine in (DOCKER, PODMAN, BUILDAH)}


def find(name: str = "", engines: Sequence[Engine] = tuple(ENGINES.values())) -> Engine:
    """Return the engine of a name, or without one the first that works here.

    Raises:
        ImageError: there is none.
    """
    listed = [engine for engine in engines if name in ("", engine.name)]
    if not listed:
        raise programs.ImageError(f"ENGINE is {name!r}: write {_alternatives(engines)}.")
    for engine in listed:
        if engine.answers():
            return engine
    installed = [engine.name for engine in listed if shutil.which(engine.command[0])]
    if installed:
        raise programs.ImageError(
            f"{installed[0]} is installed, but its engine does not answer: start it, or set ENGINE "
            f"to another of {_alternatives(engines)}."
        )
    raise programs.ImageError(f"Nothing here builds images: install {_alternatives(listed)}.")


def _alternatives(engines: Sequence[Engine]) -> str:
    *others, last = (engine.name for engine in engines)
    return f"{', '.join(others)} or {last}" if others else last
