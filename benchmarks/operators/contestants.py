"""The two operators: what their jobs look like, and how they are started as processes.

Kubeflow's is tuned: without `--kube-api-qps`, `--kube-api-burst` and `--controller-threads` it
makes 20 requests a second and looks at one job at a time. Its validating webhook is left out, for
it is asked by the API server and has no part in what is measured.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks import processes
from testing import waiting
from testing.cluster import binaries, handle, pki
from testing.operator import namespaces
from tfparallel.backends.local import ports
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources

START_SECONDS = 120.0
END_SECONDS = 30.0
NAMESPACE = "kubeflow"
WEBHOOKS = "validator.training-operator.kubeflow.org"
CERTIFICATES = pathlib.Path("/tmp/k8s-webhook-server/serving-certs")  # noqa: S108 (fixed by it)
MODULE = "github.com/kubeflow/training-operator"
TUNED = ("--kube-api-qps=1000", "--kube-api-burst=2000", "--controller-threads=16")

Body = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where an operator runs: a cluster, the namespace whose jobs it sees, a folder of its own."""

    cluster: handle.Cluster
    namespace: str
    folder: pathlib.Path


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """How a process is started, and on which port it says that it is ready."""

    arguments: Sequence[str]
    variables: Mapping[str, str]
    port: int

    def with_variables(self, **variables: str) -> "Command":
        """The same with more environment variables."""
        return dataclasses.replace(self, variables={**self.variables, **variables})


@dataclasses.dataclass(frozen=True, slots=True)
class Contestant:
    """An operator."""

    name: str
    kind: str
    resource: resources.Resource
    command: Callable[[Place], Command]
    install: Callable[[handle.Cluster], None]
    spec: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Of its jobs, beside their workers."""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def job(self, name: str, workers: int, node: str = "", **policy: object) -> Body:
        """A job of workers alone, whose pods stay after its end unless `policy` says otherwise."""
        container = {"name": names.CONTAINER, "image": "trainer:test"}
        pod: Body = {"serviceAccountName": "default", "containers": [container]}
        if node:
            pod["nodeName"] = node
        return {
            "apiVersion": self.resource.api_version,
            "kind": self.kind,
            "metadata": {"name": name, "labels": {**self.labels}},
            "spec": {
                "runPolicy": {"cleanPodPolicy": "None", **policy},
                "tfReplicaSpecs": {"Worker": {"replicas": workers, "template": {"spec": pod}}},
                **self.spec,
            },
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Running:
    """A started operator."""

    pid: int
    port: int

    def read(self, path: str) -> str:
        """What it answers on the port of its probes."""
        address = f"http://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(address, timeout=10) as answer:
            text: str = answer.read().decode()
            return text


@contextlib.asynccontextmanager
async def running(contestant: Contestant, site: Place) -> AsyncIterator[Running]:
    """Start an operator, wait until it is ready, and end it."""
    command = contestant.command(site)
    log = site.folder / f"{contestant.kind}.log"
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    with log.open("ab") as stream:
        process = subprocess.Popen(
            command.arguments,
            env={**kept, **command.variables},
            stdout=stream,
            stderr=stream,
        )
    operator = Running(process.pid, command.port)
    try:

        async def ready() -> bool:
            if process.poll() is not None:
                raise RuntimeError(
                    f"{contestant.name} ended at its start: {log.read_text()[-2000:]}"
                )
            with contextlib.suppress(OSError):
                return bool(await asyncio.to_thread(operator.read, "/readyz"))
            return False

        await waiting.until_async(ready, f"{contestant.name} is ready", START_SECONDS)
        yield operator
    finally:
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, END_SECONDS)
        except subprocess.TimeoutExpired:  # It computes, and sees no signal.
            process.kill()
            process.wait()


def _our_command(site: Place, module: str = "tfparallel_operator.main") -> Command:
    health, progress = ports.allocate(2)
    variables = {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "KUBECONFIG": str(site.cluster.kubeconfig),
        "POD_NAMESPACE": site.namespace,
        "TFPARALLEL_TRAINER_IMAGE": "trainer:test",
        "TFPARALLEL_WATCH_NAMESPACES": site.namespace,
        "TFPARALLEL_HEALTH_PORT": str(health),
        "TFPARALLEL_PROGRESS_HOST": "localhost",
        "TFPARALLEL_PROGRESS_PORT": str(progress),
    }
    return Command((sys.executable, "-m", module), variables, health)


def watched(report: pathlib.Path) -> Contestant:
    """Our operator in a process that measures its event loop, and reports when it ends."""

    def command(site: Place) -> Command:
        plain = _our_command(site, "benchmarks.scripts.watched_operator")
        path = os.pathsep.join([str(processes.ROOT), plain.variables["PYTHONPATH"]])
        return plain.with_variables(PYTHONPATH=path, REPORT=str(report))

    return dataclasses.replace(OURS, command=command)


def with_variables(contestant: Contestant, **variables: str) -> Contestant:
    """An operator with more environment variables."""

    def command(site: Place) -> Command:
        return contestant.command(site).with_variables(**variables)

    return dataclasses.replace(contestant, command=command)


def _their_command(site: Place) -> Command:
    metrics, health, webhook = ports.allocate(3)
    arguments = (
        str(binaries.path("training-operator")),
        "--enable-scheme=tfjob",
        f"--namespace={site.namespace}",
        f"--metrics-bind-address=127.0.0.1:{metrics}",
        f"--health-probe-bind-address=127.0.0.1:{health}",
        f"--webhook-server-port={webhook}",
        *TUNED,
    )
    variables = {"KUBECONFIG": str(site.cluster.kubeconfig), "MY_POD_NAMESPACE": NAMESPACE}
    return Command(arguments, variables, health)


def _install_theirs(cluster: handle.Cluster) -> None:
    """What its process waits for: its resource, and what it keeps its certificates in."""
    binaries.ensure(["training-operator"])
    crd = binaries.published("kubeflow", MODULE, "manifests/base/crds/kubeflow.org_tfjobs.yaml")
    # Its descriptions are too long for the annotation of a client-side apply.
    cluster.run_kubectl("apply", "--server-side", "-f", "-", input=crd)
    cluster.wait_established("tfjobs.kubeflow.org")
    metadata = {"name": "training-operator-webhook-cert", "namespace": NAMESPACE}
    objects: list[Body] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata},
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": WEBHOOKS},
            "webhooks": [],
        },
    ]
    listing = {"apiVersion": "v1", "kind": "List", "items": objects}
    cluster.run_kubectl("apply", "-f", "-", input=json.dumps(listing))


@contextlib.contextmanager
def mounted() -> Iterator[None]:
    """Put certificates where Kubeflow's operator finds its Secret mounted, and remove them."""
    if CERTIFICATES.exists():
        raise FileExistsError(f"{CERTIFICATES} exists: does another training-operator run here?")
    CERTIFICATES.mkdir(parents=True)
    try:
        with tempfile.TemporaryDirectory() as name:
            authority = pki.Authority(pathlib.Path(name))
            pair = authority.issue("webhook", "webhook", hosts=["localhost"])
            for file, source in (("tls.crt", pair.certificate), ("tls.key", pair.key)):
                (CERTIFICATES / file).write_bytes(source.read_bytes())
        yield
    finally:
        for written in CERTIFICATES.iterdir():
            written.unlink()
        CERTIFICATES.rmdir()
        with contextlib.suppress(OSError):  # Others may have put something beside them.
            CERTIFICATES.parent.rmdir()


def _install_ours(cluster: handle.Cluster) -> None:
    namespaces.install(cluster)


OURS = Contestant("ours", names.KIND, resources.JOBS, _our_command, _install_ours)
THEIRS = Contestant(
    "Kubeflow's training-operator 1.9.3",
    "TFJob",
    resources.Resource("kubeflow.org/v1", "tfjobs"),
    _their_command,
    _install_theirs,
)
