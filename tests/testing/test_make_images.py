"""`make images` chooses an engine, names what it builds, and says in a sentence what is wrong."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from images import targets
from testing import invocation

Run = Callable[..., subprocess.CompletedProcess[str]]
VERSION = targets.version()
PROGRAM = """\
#!/bin/sh
echo "${{0##*/}} $*" >> {calls}
case "$*" in
{failures}
esac
"""
"""A program in the place of an engine: real ones fail at other moments on other machines."""


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    return tmp_path / "calls"


@pytest.fixture
def run(tmp_path: Path, calls: Path) -> Run:
    """Run the command where these engines are installed, each with what it fails at."""

    def start(
        *arguments: str, engines: Mapping[str, Mapping[str, str]]
    ) -> subprocess.CompletedProcess[str]:
        programs = tmp_path / "bin"
        programs.mkdir()
        for name, failures in engines.items():
            cases = "\n".join(
                f"{pattern}) echo 'much output'; echo '{message}'; exit 1;;"
                for pattern, message in failures.items()
            )
            program = programs / name
            program.write_text(PROGRAM.format(calls=calls, failures=cases))
            program.chmod(0o755)
        return invocation.execute(
            sys.executable,
            "-m",
            "images",
            *arguments,
            folder=tmp_path,
            env={"PATH": str(programs), "PYTHONPATH": str(targets.ROOT)},
        )

    return start


pytestmark = pytest.mark.usefixtures("processes")


def _error(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in done.stderr
    return line.removeprefix("error: ")


def test_both_images_are_built_and_pushed_to_the_registry(run: Run, calls: Path) -> None:
    done = run("--registry=registry.example/team", "--tag=v7", "--push", engines={"docker": {}})
    assert done.returncode == 0, done.stderr
    names = [f"registry.example/team/tfparallel-{name}:v7" for name in targets.TARGETS]
    assert done.stdout.splitlines() == names
    asked = calls.read_text().splitlines()
    for name, reference in zip(targets.TARGETS, names, strict=True):
        [build] = [line for line in asked if f"--target {name} --tag {reference}" in line]
        assert f"--build-arg VERSION={VERSION}" in build
        assert asked.index(f"docker push {reference}") > asked.index(build)


def test_without_a_registry_images_have_the_names_that_kubernetes_looks_for(
    run: Run, calls: Path
) -> None:
    done = run(engines={"podman": {}})
    assert done.stdout.splitlines() == [
        f"docker.io/library/tfparallel-{name}:{VERSION}" for name in targets.TARGETS
    ]
    assert "push" not in calls.read_text()


def test_the_first_engine_that_answers_builds(run: Run, calls: Path) -> None:
    done = run(engines={"docker": {"version*": "no daemon"}, "buildah": {}})
    assert done.returncode == 0, done.stderr
    assert "buildah build" in calls.read_text()
    assert "docker build" not in calls.read_text()


def test_the_engine_can_be_chosen(run: Run, calls: Path) -> None:
    done = run("--engine=podman", engines={"docker": {}, "podman": {}})
    assert done.returncode == 0, done.stderr
    assert "docker" not in {line.split()[0] for line in calls.read_text().splitlines()}


def test_a_registry_on_loopback_needs_no_certificate(run: Run, calls: Path) -> None:
    run("--registry=localhost:5001", "--push", engines={"podman": {}})
    reference = f"localhost:5001/tfparallel-operator:{VERSION}"
    assert f"podman push --tls-verify=false {reference}" in calls.read_text().splitlines()


def test_gpus_need_other_requirements_and_a_base_can_be_chosen(run: Run, calls: Path) -> None:
    choices = ("--requirements=requirements/trainer-cuda.txt", "--base-image=mirror.example/python")
    run(*choices, engines={"docker": {}})
    builds = [line for line in calls.read_text().splitlines() if line.startswith("docker build")]
    assert len(builds) == 2
    for build in builds:
        assert "--build-arg TRAINER_REQUIREMENTS=requirements/trainer-cuda.txt" in build
        assert "--build-arg BASE_IMAGE=mirror.example/python" in build


def test_archives_serve_clusters_that_load_files(run: Run, calls: Path, tmp_path: Path) -> None:
    run(f"--archives={tmp_path}/archives", engines={"buildah": {}})
    reference = f"docker.io/library/tfparallel-trainer:{VERSION}"
    archive = f"docker-archive:{tmp_path}/archives/tfparallel-trainer.tar:{reference}"
    assert f"buildah push --quiet {reference} {archive}" in calls.read_text().splitlines()


@pytest.mark.parametrize(
    ("variables", "engines", "message"),
    [
        ((), {}, "Nothing here builds images: install docker, podman or buildah."),
        (
            (),
            {"docker": {"version*": "no daemon"}},
            "docker is installed, but its engine does not answer: start it, or set ENGINE to "
            "another of docker, podman or buildah.",
        ),
        (("--engine=podman",), {"docker": {}}, "Nothing here builds images: install podman."),
        (("--engine=moby",), {}, "ENGINE is 'moby': write docker, podman or buildah."),
        (
            ("--push",),
            {"docker": {}},
            "PUSH needs REGISTRY, such as REGISTRY=registry.example/team",
        ),
        (
            ("--registry=https://registry.example",),
            {"docker": {}},
            "REGISTRY is 'https://registry.example': write a host and a path, such as "
            "registry.example/team",
        ),
        (("--tag=a/b",), {"docker": {}}, "TAG is 'a/b': write letters, digits, '_', '.' and '-'"),
        (
            (),
            {"docker": {"image*": "absent", "pull*": "manifest unknown"}},
            "docker cannot pull the base image python:3.11-slim: manifest unknown. Set BASE_IMAGE "
            "to a Debian-like image with Python 3.11 or newer that it can pull or has.",
        ),
        (
            (),
            {"docker": {"build*": "pip failed"}},
            "docker cannot build the image of the operator: pip failed. The whole output is in "
            "build/images/operator.log.",
        ),
        (
            ("--registry=registry.example/team", "--push"),
            {"docker": {"push*": "denied: unauthorized"}},
            f"docker cannot push registry.example/team/tfparallel-operator:{VERSION}: denied: "
            "unauthorized. See that REGISTRY is right, and that `docker login registry.example` "
            "was run by a user who may push there.",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    run: Run, variables: tuple[str, ...], engines: dict[str, dict[str, str]], message: str
) -> None:
    assert _error(run(*variables, engines=engines)) == message


@pytest.mark.parametrize(
    ("text", "registry"),
    [
        ("you", "docker.io/you"),
        ("localhost/team", "localhost/team"),
        ("host:5000", "host:5000"),
        ("", ""),
    ],
)
def test_an_account_of_docker_hub_needs_no_host(text: str, registry: str) -> None:
    assert targets.parse_registry(text) == registry
