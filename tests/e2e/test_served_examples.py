"""The examples that need a server train in pods: it listens in the network of the cluster."""

import contextlib
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
import yaml

from testing import buckets, paths, waiting
from testing.cluster import handle, netns, process, settings
from testing.e2e import kubectl_namespaces, volumes
from tfparallel.backends.local import ports

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

BUCKET = "training"
SECONDS = 900.0


@pytest.fixture
def endpoint(cluster: handle.Cluster) -> str:
    """Host and port of the node, for a server that pods reach."""
    if cluster.mode == settings.Kind.mode:
        pytest.skip("A server inside a cluster needs root.")
    (port,) = ports.allocate(1)
    return f"{netns.NODE_ADDRESS}:{port}"


@contextlib.contextmanager
def serving(
    cluster: handle.Cluster, endpoint: str, command: list[str], log: pathlib.Path
) -> Iterator[None]:
    """Meanwhile a program of this machine answers pods."""
    connect = cluster.inside_network("bash", "-c", f"< /dev/tcp/{endpoint.replace(':', '/')}")
    with process.running(cluster.inside_network(*command), log):
        waiting.until(
            lambda: subprocess.run(connect, capture_output=True, check=False),
            f"an answer at {endpoint}",
            when=lambda done: done.returncode == 0,
        )
        yield


@pytest.fixture
def examples(tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the examples, to write addresses into."""
    return shutil.copytree(paths.EXAMPLES, tmp_path / "examples")


def train(namespace: kubectl_namespaces.KubectlNamespace, folder: pathlib.Path) -> None:
    """Train an example by the command of its page."""
    namespace.kubectl("apply", f"--kustomize={folder}")
    status = namespace.wait_ended(folder.name, SECONDS)["status"]
    assert status["state"] == "Succeeded", namespace.describe(folder.name)


def test_data_and_results_are_in_a_bucket(
    endpoint: str,
    examples: pathlib.Path,
    namespace: kubectl_namespaces.KubectlNamespace,
    tmp_path: pathlib.Path,
) -> None:
    folder, root, cluster = examples / "bucket", tmp_path / "s3", namespace.cluster
    job = (folder / "job.yaml").read_text(encoding="utf-8")
    (folder / "job.yaml").write_text(job.replace("my-bucket", BUCKET), encoding="utf-8")
    keys = {
        "AWS_REGION": buckets.REGION,
        "AWS_ACCESS_KEY_ID": buckets.KEY,
        "AWS_SECRET_ACCESS_KEY": buckets.SECRET,
        "AWS_ENDPOINT_URL": f"http://{endpoint}",
    }
    (folder / "bucket.env").write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    root.mkdir()
    with serving(cluster, endpoint, buckets.serve(root, endpoint), tmp_path / "log"):
        (root / "buckets" / BUCKET).mkdir()
        upload = (sys.executable, str(folder / "upload.py"), f"s3://{BUCKET}/data/digits.npz")
        environment = process.environment() | keys
        subprocess.run(cluster.inside_network(*upload), env=environment, check=True)
        train(namespace, folder)
    assert (root / "buckets" / BUCKET / "runs/bucket/model.keras").stat().st_size


def test_packages_come_from_the_index_that_the_job_names(
    endpoint: str,
    examples: pathlib.Path,
    namespace: kubectl_namespaces.KubectlNamespace,
    tmp_path: pathlib.Path,
) -> None:
    folder, index = examples / "requirements", tmp_path / "index"
    fill(index, folder / "requirements.txt", tmp_path / "wheels")
    job = yaml.safe_load((folder / "job.yaml").read_text(encoding="utf-8"))
    host, _, port = endpoint.partition(":")
    variables = {"PIP_INDEX_URL": f"http://{endpoint}/", "PIP_TRUSTED_HOST": host}
    job["spec"]["trainer"]["env"] = [
        {"name": name, "value": value} for name, value in variables.items()
    ]
    (folder / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    volumes.provide(namespace, "requirements")
    serve = [sys.executable, "-m", "http.server", f"--bind={host}", f"--directory={index}", port]
    with serving(namespace.cluster, endpoint, serve, tmp_path / "log"):
        train(namespace, folder)


def fill(index: pathlib.Path, requirements: pathlib.Path, wheels: pathlib.Path) -> None:
    """Write a package index, whose pages are the lists of folders that the server makes."""
    download = (sys.executable, "-m", "pip", "download", f"--dest={wheels}", "-r", requirements)
    done = subprocess.run(download, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no package index is in reach: {done.stderr.splitlines()[-1]}")
    for wheel in wheels.iterdir():
        project = re.sub(r"[-_.]+", "-", wheel.name.partition("-")[0]).lower()
        (index / project).mkdir(parents=True)
        wheel.rename(index / project / wheel.name)
