"""Simulated nodes: KWOK keeps them ready and moves the pods on them to Running."""

import json
from typing import Any

from testing.cluster import binaries, controlplane, handle, pki, state
from tfparallel.backends.local import ports

MARK = "kwok.x-k8s.io/node"
READY_LIMIT_SECONDS = 180.0


def start(ledger: state.Ledger, authority: pki.Authority, plan: controlplane.Plan) -> None:
    """Start KWOK for nodes that carry its mark."""
    path = ledger.directory / "keys" / "kwok.kubeconfig"
    authority.kubeconfig(path, plan.server, "kwok", pki.ADMINISTRATORS)
    (port,) = ports.allocate(1)
    arguments = [
        f"--kubeconfig={path}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={MARK}=fake",
        f"--server-address={controlplane.LOOPBACK}:{port}",
    ]
    ledger.start("kwok", [str(binaries.path("kwok")), *arguments])


def add_nodes(ledger: state.Ledger, cluster: handle.Cluster, count: int, gpus: int) -> None:
    """Create nodes with GPUs and wait until they are ready for pods."""
    nodes = [_node(f"gpu-node-{index}", gpus) for index in range(count)]
    listing = json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes})
    cluster.run_kubectl("create", "-f", "-", input=listing)
    ledger.wait_until("the nodes", lambda: ready_nodes(cluster) >= count, READY_LIMIT_SECONDS)


def ready_nodes(cluster: handle.Cluster) -> int:
    """Number of nodes that are ready for pods."""
    nodes = json.loads(cluster.run_kubectl("get", "nodes", "-ojson"))["items"]
    return sum(_takes_pods(node) for node in nodes)


def _takes_pods(node: dict[str, Any]) -> bool:
    conditions = {
        condition["type"]: condition["status"] for condition in node["status"].get("conditions", [])
    }
    return conditions.get("Ready") == "True" and not node["spec"].get("taints")


def _node(name: str, gpus: int) -> dict[str, Any]:
    resources = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "type": "kwok"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {MARK: "fake"}},
        "status": {"capacity": resources, "allocatable": resources},
    }
