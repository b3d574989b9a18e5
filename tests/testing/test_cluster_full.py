"""The full cluster runs containers that find each other, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testing import waiting
from testing.cluster import binaries, cgroups, folders, handle, images, lifecycle, settings, state

IMAGE = "localhost/tfparallel-probe:1"
WAIT = "--timeout=60s"
START_LIMIT_SECONDS = 250.0
UP_THAT_STANDS_STILL = """
import signal, sys
from testing.cluster import __main__, kwok
kwok.ready_nodes = lambda cluster: signal.pause()
sys.exit(__main__.main(sys.argv[1:]))
"""
NODE_FOLDERS = (
    "/var/lib/kubelet",
    "/var/lib/containerd",
    "/var/lib/cni",
    "/var/log/pods",
    "/var/log/containers",
    "/run/containerd",
    "/opt/containerd",
    "/usr/libexec/kubernetes",
)

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and containers need root"),
]


@pytest.fixture(scope="module")
def probe_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    binaries.ensure(["probe"])
    path = tmp_path_factory.mktemp("probe") / "probe.tar"
    return images.write_archive(path, IMAGE, binaries.path("probe"))


@pytest.fixture(scope="module")
def cluster(full_cluster: handle.Cluster, probe_archive: Path) -> Iterator[handle.Cluster]:
    full_cluster.load_image(probe_archive)
    full_cluster.create_namespace("probes")
    yield full_cluster
    full_cluster.run_kubectl("delete", "namespace", "probes", "--wait=false")


def start_pod(cluster: handle.Cluster, name: str, *arguments: str, **more: Any) -> None:
    gpus = more.pop("gpus", 0)
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    container = {"name": "main", "image": IMAGE, "args": arguments, "resources": resources}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, **more}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "probes", "labels": {"app": "mesh"}},
        "spec": {**spec, "containers": [container]},
    }
    cluster.run_kubectl("create", "-f", "-", input=json.dumps(pod))


def output(cluster: handle.Cluster, name: str) -> str:
    """What a pod printed once it has ended well."""
    ended = "--for=jsonpath={.status.phase}=Succeeded"
    cluster.run_kubectl("-nprobes", "wait", f"pod/{name}", ended, WAIT)
    return cluster.run_kubectl("-nprobes", "logs", name).strip()


def wait_ready(cluster: handle.Cluster, name: str) -> None:
    cluster.run_kubectl("-nprobes", "wait", f"pod/{name}", "--for=condition=Ready", WAIT)


def test_pod_runs_and_its_logs_are_readable(cluster: handle.Cluster) -> None:
    start_pod(cluster, "speaker", "say", "the", "word")
    assert output(cluster, "speaker") == "the word"


def test_pods_find_each_other_through_a_headless_service(cluster: handle.Cluster) -> None:
    service = ["service", "clusterip", "mesh", "--clusterip=None"]
    cluster.run_kubectl("-nprobes", "create", *service)
    start_pod(cluster, "server", "serve", "8080", hostname="server", subdomain="mesh")
    start_pod(cluster, "resolver", "resolve", "server.mesh")
    start_pod(cluster, "client", "get", "http://server.mesh.probes.svc.cluster.local:8080")
    assert output(cluster, "client") == "200 server"
    address = cluster.run_kubectl("-nprobes", "get", "pod", "server", "-ojsonpath={.status.podIP}")
    assert output(cluster, "resolver") == address


def test_pod_reaches_another_through_a_service_address(cluster: handle.Cluster) -> None:
    start_pod(cluster, "behind", "serve", "8080")
    cluster.run_kubectl(
        "-nprobes", "expose", "pod", "behind", "--port=80", "--target-port=8080", "--name=front"
    )
    start_pod(cluster, "caller", "get", "http://front")
    assert output(cluster, "caller").startswith("200 ")


def test_pod_reaches_the_api_server_as_its_service_account(cluster: handle.Cluster) -> None:
    start_pod(cluster, "asker", "api", "/version")
    assert output(cluster, "asker").startswith("200 ")
    start_pod(cluster, "intruder", "api", "/api/v1/nodes")
    assert output(cluster, "intruder").startswith("403 ")


def test_command_can_be_run_in_a_pod(cluster: handle.Cluster) -> None:
    start_pod(cluster, "host", "serve", "8080")
    wait_ready(cluster, "host")
    output = cluster.run_kubectl("-nprobes", "exec", "host", "--", "/probe", "say", "hello")
    assert output == "hello\n"


def test_gpus_are_counted(cluster: handle.Cluster) -> None:
    start_pod(cluster, "three", "serve", "8080", gpus=3)
    wait_ready(cluster, "three")
    start_pod(cluster, "two", "say", "at", "last", gpus=2)
    unschedulable = "--for=jsonpath={.status.conditions[0].reason}=Unschedulable"
    cluster.run_kubectl("-nprobes", "wait", "pod/two", unschedulable, WAIT)
    cluster.run_kubectl("-nprobes", "delete", "pod", "three")
    assert output(cluster, "two") == "at last"


def traces() -> dict[str, set[str]]:
    """Everything of the machine's own that a cluster could leave changed."""

    def lines(*command: str) -> set[str]:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return set(done.stdout.splitlines())

    sysctls = (Path("/proc/sys/vm/overcommit_memory"), Path("/proc/sys/kernel/panic"))
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    of_builds = f"{folders.cache()}/images/"  # Builds of images mount their layers.
    return {
        "namespaces": lines("ip", "netns"),
        "interfaces": {line.split()[1] for line in lines("ip", "-oneline", "link")},
        "routes": lines("ip", "route"),
        "rules": {line for line in lines("iptables-save") if not line.startswith(("#", ":"))},
        "mounts": {mount for mount in mounts if of_builds not in mount},
        "control groups": {str(path) for path in cgroups.ROOT.glob("*/tfparallel-*")},
        "settings": {path.read_text(encoding="ascii") for path in sysctls},
        "folders": {path for path in NODE_FOLDERS if Path(path).exists()},
    }


def added(before: dict[str, set[str]]) -> dict[str, set[str]]:
    """What is there now and was not before; what others removed meanwhile is their affair."""
    return {kind: more for kind, now in traces().items() if (more := now - before[kind])}


def members(directory: Path) -> set[str]:
    """The command lines of living processes that name the cluster's folder or are in its pods.

    Those of other clusters come and go meanwhile.
    """
    pods = f"/{cgroups.branch(directory)}/"
    commands = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ")
            groups = (process / "cgroup").read_text(encoding="utf-8")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if os.fsencode(directory) in command or pods in groups:
            commands.add(f"{process.name} {command.decode(errors='replace')}")
    return commands


@pytest.mark.long
def test_two_clusters_side_by_side_leave_nothing_behind(
    cluster: handle.Cluster, probe_archive: Path
) -> None:
    folder = folders.clusters() / f"pytest-second-{os.getpid()}"
    before = traces()
    second = lifecycle.up(folder.name, settings.Full(gpus=1))
    try:
        second.load_image(probe_archive)
        second.create_namespace("probes")
        start_pod(second, "alone", "serve", "8080", gpus=1)
        wait_ready(second, "alone")
        assert "alone" not in cluster.run_kubectl("-nprobes", "get", "pods", "-oname")
        assert any(" /probe" in member for member in members(folder))
    finally:
        lifecycle.down(folder.name)
    assert not members(folder)
    assert not added(before)
    assert not folder.exists()
    assert "gpu-node" in cluster.run_kubectl("get", "nodes", "-oname")


@pytest.mark.usefixtures("cluster_programs")
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGKILL]
)
def test_interrupted_up_can_be_cleared_away(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "broken"
    before = traces()
    where = ["--name", "broken", "--dir", str(folder)]
    command = [sys.executable, "-c", UP_THAT_STANDS_STILL, "up", "--mode", "full", *where]
    with subprocess.Popen(command, cwd=folders.SOURCE.parents[1], start_new_session=True) as up:
        waiting.until(
            lambda: "kubelet" in started(folder),
            "the start of the kubelet",
            START_LIMIT_SECONDS,
            in_vain=lambda: "" if up.poll() is None else f"It ended with {up.poll()}",
        )
        up.send_signal(number)
    left = folder.exists()
    downed = lifecycle.down("broken", folder)
    killed = number == signal.SIGKILL  # else it cleaned up after itself
    assert (left, downed) == (killed, killed)
    assert not folder.exists()
    # What a killed command has just started ends by itself.
    waiting.until(lambda: members(folder), "its end", when=lambda left: not left)
    assert not added(before)


def started(folder: Path) -> set[str]:
    cluster_state = state.load(folder)
    return set() if cluster_state is None else {record.name for record in cluster_state.processes}
