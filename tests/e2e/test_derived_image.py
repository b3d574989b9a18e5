"""The Dockerfile and the job of the page on sources, built and trained word by word."""

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from images import engines, programs, targets
from testing import pages, paths, sources
from testing.cluster import handle
from testing.e2e import kubectl_namespaces, modules
from testing.image_cache import build, store

pytestmark = [pytest.mark.timeout(1800)]

PAGE = paths.PAGES / "how-to/sources.md"
IN_REGISTRY = f"registry.example/team/{targets.TRAINER.reference}"
BASE = targets.TRAINER.full_reference("", "")
LOOPBACK = "127.0.0.1"
MODEL = modules.dense("import addon", before_data=('assert addon.VERSION == "1.0"',))


@pytest.fixture
def engine(cluster: handle.Cluster) -> engines.Engine:
    """The engine of the test cluster's images, which has that of the trainer."""
    [trainer] = build.ensure([targets.TRAINER])
    engine = engines.DOCKER if engines.DOCKER.answers() else store.engine(build.folder())
    if engine is engines.DOCKER and not engine.has(BASE):
        load = (*engine.command, "load", "--input", str(trainer.archive))
        programs.run(load, build.folder() / "load.log")
    return engine


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """The address of a page with a wheel, which stands for a package index."""
    folder = tmp_path / "wheels"
    sources.write_wheel(folder, "addon", "1.0", "numpy")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer((LOOPBACK, 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://{LOOPBACK}:{server.server_port}/"
        server.shutdown()
        thread.join()


def write_context(folder: Path, index: str) -> None:
    """Write what the page's Dockerfile copies, from a base image of this machine."""
    [dockerfile] = pages.blocks(PAGE, "dockerfile")
    assert dockerfile.startswith(f"FROM {IN_REGISTRY}\n")
    folder.mkdir()
    (folder / "Dockerfile").write_text(dockerfile.replace(IN_REGISTRY, BASE))
    (folder / "requirements.txt").write_text(f"--no-index\n--find-links {index}\naddon\n")
    (folder / "model.py").write_text(MODEL)


@pytest.mark.long
def test_the_image_of_the_page_is_built_and_trains_the_job_of_the_page(
    cluster: handle.Cluster,
    engine: engines.Engine,
    index: str,
    namespace: kubectl_namespaces.KubectlNamespace,
    tmp_path: Path,
) -> None:
    [job] = [yaml.safe_load(block) for block in pages.blocks(PAGE, "yaml") if "image: " in block]
    [container] = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    image = container["image"]
    context, log, archive = tmp_path / "context", tmp_path / "log", tmp_path / "image.tar"
    write_context(context, index)
    network = ("--network", "host", "--build-arg", f"no_proxy={LOOPBACK}")
    command = (*engine.command, *engine.build_command, *network, "--tag", image, str(context))
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
        assert [container["image"] for container in pod["spec"]["containers"]] == [image]
        assert "initContainers" not in pod["spec"]
