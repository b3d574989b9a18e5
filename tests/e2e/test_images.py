"""What the images hold and what they do not."""

import json
import tarfile

import pytest

from images import targets
from testing.cluster import handle
from testing.e2e import volumes
from testing.image_cache import archive, build

pytestmark = [pytest.mark.timeout(1800)]

USER = 65532
LOOK = """
import importlib.util, json, os, pathlib, subprocess, sys, sysconfig

names = ("tensorflow", "sklearn", "kopf", "kubernetes", "pip", "tfparallel_trainer")
packages = pathlib.Path(sysconfig.get_path("purelib"))
cached = importlib.util.cache_from_source
# What explains the errors of Keras' fit in scripts is loaded in replicas of scripts.
look = "import sys; print('tfparallel_trainer' in sys.modules)"
command = [sys.executable, "-c", look]
env = {**os.environ, "TFPARALLEL_ON_SEPARATE_TRAINING": "Stop"}
loaded = subprocess.run(command, env=env, capture_output=True, check=True).stdout
print(json.dumps({
    "user": os.getuid(),
    "held": [name for name in names if importlib.util.find_spec(name)],
    "explained": loaded == b"True\\n",
    "uncompiled": [str(p) for p in packages.rglob("*.py") if not os.path.exists(cached(str(p)))],
}))
"""
LARGEST_OPERATOR_BYTES = 300e6


@pytest.fixture(scope="module", params=list(targets.TARGETS))
def image(request: pytest.FixtureRequest, cluster: handle.Cluster) -> build.Image:
    [built] = build.ensure([targets.TARGETS[request.param]])
    return built


def _run(cluster: handle.Cluster, image: build.Image, program: str) -> str:
    name = image.reference.partition(":")[0].replace("/", "-")
    where = f"--namespace={volumes.KEEPER_NAMESPACE}"
    flags = ("--restart=Never", "--image-pull-policy=Never", f"--image={image.reference}")
    command = ("--command", "--", "python", "-c", program)
    cluster.run_kubectl("run", name, where, *flags, *command)
    ended = "--for=jsonpath={.status.phase}=Succeeded"
    cluster.run_kubectl("wait", f"pod/{name}", where, ended, "--timeout=120s")
    log = cluster.run_kubectl("logs", name, where)
    cluster.run_kubectl("delete", "pod", name, where)
    return log.strip()


def test_tensorflow_shows_its_warnings_and_no_information(cluster: handle.Cluster) -> None:
    [trainer] = build.ensure([targets.TRAINER])
    assert "TF_CPP_MIN_LOG_LEVEL=1" in archive.configuration(trainer.archive)["config"]["Env"]


def test_nothing_of_the_place_of_the_build_stays(image: build.Image) -> None:
    history = json.dumps(archive.configuration(image.archive)["history"])
    assert "COPY" in history
    assert "secret" not in history
    with tarfile.open(image.archive) as members:
        for layer in archive.manifest(image.archive)["Layers"]:
            with tarfile.open(fileobj=archive.member(members, layer)) as files:
                names = {name.removeprefix("./") for name in files.getnames()}
            assert names
            assert not names & {"etc/pip.conf", "run/secrets/ca.crt", "etc/apt/sources.list"}


def test_it_runs_as_a_user_without_rights(image: build.Image) -> None:
    config = archive.configuration(image.archive)["config"]
    assert config["User"] == f"{USER}:{USER}"
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    version = config["Labels"]["org.opencontainers.image.version"]
    assert image.reference.endswith(f":{version}")


def test_it_holds_what_it_needs_and_no_more(cluster: handle.Cluster, image: build.Image) -> None:
    packages = {
        targets.OPERATOR.reference: ["kopf", "tfparallel_trainer"],
        targets.TRAINER.reference: ["tensorflow", "sklearn", "tfparallel_trainer"],
    }
    report = json.loads(_run(cluster, image, LOOK))
    assert report == {
        "user": USER,
        "held": packages[image.reference],
        "explained": True,
        "uncompiled": [],
    }


def test_operator_is_small(cluster: handle.Cluster) -> None:
    [image] = build.ensure([targets.OPERATOR])
    assert image.archive.stat().st_size < LARGEST_OPERATOR_BYTES
