"""The Dockerfile and the job of the page on sources, built and trained word by word."""

from pathlib import Path

import pytest
import yaml

from images import engines, programs, targets
from testing import pages, paths, sources
from testing.cluster import handle
from testing.e2e import namespaces
from testing.image_cache import build, store

pytestmark = [pytest.mark.timeout(1800)]

PAGE = paths.PAGES / "how-to/sources.md"
IN_REGISTRY = f"registry.example/team/{targets.TRAINER.reference}"
WHEELS = "/wheels"
MODEL = """
import addon
import keras
import numpy


def build_model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


def compile_model(model):
    model.compile(optimizer="sgd", loss="mse")


def training_data():
    assert addon.VERSION == "1.0"
    x = numpy.ones((64, 3), "float32")
    return x, x[:, :1]
"""


@pytest.fixture
def engine(cluster: handle.Cluster) -> engines.Engine:
    """The engine of the test cluster's images; a folder of wheels stands for a package index."""
    if engines.DOCKER.answers():
        pytest.skip("docker shows no folder of this machine to a build.")
    build.ensure([targets.TRAINER])
    return store.engine(build.folder())


def write_context(folder: Path, base: str) -> None:
    """Write what the page's Dockerfile copies, from a base image of this machine."""
    [dockerfile] = pages.blocks(PAGE, "dockerfile")
    assert dockerfile.startswith(f"FROM {IN_REGISTRY}\n")
    (folder / "Dockerfile").write_text(dockerfile.replace(IN_REGISTRY, base))
    (folder / "requirements.txt").write_text(f"--no-index\n--find-links {WHEELS}\naddon\n")
    (folder / "model.py").write_text(MODEL)
    sources.write_wheel(folder / "wheels", "addon", "1.0", "numpy")


@pytest.mark.long
def test_the_image_of_the_page_is_built_and_trains_the_job_of_the_page(
    cluster: handle.Cluster,
    engine: engines.Engine,
    namespace: namespaces.Namespace,
    tmp_path: Path,
) -> None:
    [job] = [yaml.safe_load(block) for block in pages.blocks(PAGE, "yaml") if "image: " in block]
    [container] = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    image = container["image"]
    write_context(tmp_path, targets.TRAINER.full_reference("", ""))
    wheels = ("--volume", f"{tmp_path / 'wheels'}:{WHEELS}:ro")
    command = (*engine.command, *engine.build_command, *wheels, "--tag", image, str(tmp_path))
    log, archive = tmp_path / "log", tmp_path / "image.tar"
    programs.run(command, log, shown=lambda _: False)
    engine.write(image, archive, log)
    cluster.load_image(archive)
    archive.unlink()
    # The page's template sets no securityContext, which the level restricted asks for.
    level = "pod-security.kubernetes.io/enforce=baseline"
    namespace.kubectl("label", "namespace", namespace.name, level, "--overwrite")
    namespace.apply(job)
    ended = namespace.wait_ended(job["metadata"]["name"])
    assert ended["status"]["state"] == "Succeeded", namespace.describe(job["metadata"]["name"])
    for pod in namespace.pods(job["metadata"]["name"]).values():
        assert [one["image"] for one in pod["spec"]["containers"]] == [image]
        assert "initContainers" not in pod["spec"]
