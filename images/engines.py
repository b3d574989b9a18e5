"""The programs that build a Dockerfile: docker, podman and buildah."""

import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from images import pip_settings, programs, targets

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

    def flags(self, secrets: Mapping[str, Path]) -> list[str]:
        """Return what all engines understand."""
        arguments = {"BASE_IMAGE": self.base_image, "VERSION": targets.version()}
        if self.requirements:
            arguments["TRAINER_REQUIREMENTS"] = self.requirements
        flags = ["--target", self.target.name, "--tag", self.reference]
        for name, value in arguments.items():
            flags += ["--build-arg", f"{name}={value}"]
        for name, file in secrets.items():
            flags += ["--secret", f"id={name},src={file}"]
        return flags


@dataclasses.dataclass(frozen=True)
class Engine:
    """A program that builds, pushes and writes images; what fails is an ImageError."""

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
        """Build an image, with pip configured as on this machine; the output goes to the log."""
        log.unlink(missing_ok=True)
        base = build.base_image
        if not self.has(base):
            programs.say(f"pulling {base}")
            remedy = (
                "Set BASE_IMAGE to a Debian-like image with Python 3.11 or newer that it can pull"
                " or has."
            )
            self._run(["pull", base], log, f"pull the base image {base}", remedy)
        with pip_settings.secrets(log.parent) as secrets:
            self._run(
                [*self.build_command, *build.flags(secrets), str(targets.ROOT)],
                log,
                f"build the image of the {build.target.name}",
                f"The whole output is in {log}.",
                shown=lambda line: self.step in line,
            )

    def push(self, reference: str, log: Path) -> None:
        """Push an image to the registry of its name."""
        host = reference.partition("/")[0]
        # docker asks no registry on loopback for TLS.
        plain = self.name != DOCKER.name and host.startswith(LOOPBACK)
        flags = ["--tls-verify=false"] if plain else []
        remedy = (
            f"See that REGISTRY is right, and that `{self.name} login {host}` was run by a user"
            " who may push there."
        )
        self._run(["push", *flags, reference], log, f"push {reference}", remedy)

    def write(self, reference: str, archive: Path, log: Path) -> None:
        """Write an image to a docker-archive."""
        command = ["save", "--output", str(archive), reference]
        if self.name == PODMAN.name:
            command[1:1] = ["--format", "docker-archive"]
        if self.name == BUILDAH.name:
            command = ["push", "--quiet", reference, f"docker-archive:{archive}:{reference}"]
        self._run(command, log, f"write {reference} to {archive}")

    def _run(
        self,
        arguments: Sequence[str],
        log: Path,
        purpose: str,
        remedy: str = "",
        shown: Callable[[str], bool] = lambda _: False,
    ) -> None:
        try:
            environment = {"DOCKER_BUILDKIT": "1"}
            programs.run([*self.command, *arguments], log, shown=shown, environment=environment)
        except programs.ProgramError as error:
            message = f"{self.name} cannot {purpose}: {error}. {remedy}"
            raise programs.ImageError(message.rstrip()) from error


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
ENGINES = (DOCKER, PODMAN, BUILDAH)


def find(name: str = "") -> Engine:
    """Return the engine of a name, or without one the first that works here.

    Raises:
        ImageError: there is none.
    """
    listed = [engine for engine in ENGINES if name in ("", engine.name)]
    if not listed:
        raise programs.ImageError(f"ENGINE is {name!r}: write {_alternatives(ENGINES)}.")
    for engine in listed:
        if engine.answers():
            return engine
    installed = [engine.name for engine in listed if shutil.which(engine.command[0])]
    if installed:
        raise programs.ImageError(
            f"{installed[0]} is installed, but its engine does not answer: start it, or set ENGINE "
            f"to another of {_alternatives(ENGINES)}."
        )
    raise programs.ImageError(f"Nothing here builds images: install {_alternatives(listed)}.")


def _alternatives(engines: Sequence[Engine]) -> str:
    *others, last = (engine.name for engine in engines)
    return f"{', '.join(others)} or {last}" if others else last
