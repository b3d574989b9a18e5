"""The one real node: containerd, the kubelet and kube-proxy, all inside the namespaces."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from testing.cluster import (
    binaries,
    cgroups,
    console,
    controlplane,
    coredns,
    handle,
    images,
    kwok,
    measured,
    netns,
    packages,
    pki,
    state,
)

NAME = "gpu-node"
POD_RANGE = "10.244.0.0/16"
PAUSE_IMAGE = "localhost/tfparallel-pause:1"
SOCKET = "/run/containerd/containerd.sock"
START_LIMIT_SECONDS = 90.0
CONTAINERD_CONFIGURATION = """\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
  address = "{socket}"

[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Machines in a sandbox often lack the right to lower a process's score.
  restrict_oom_score_adj = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{networks}"
"""


def start(
    ledger: state.Ledger, authority: pki.Authority, plan: controlplane.Plan, cluster: handle.Cluster
) -> None:
    """Start the node and wait until it takes pods."""
    folder = ledger.directory / "node"
    _start_containerd(ledger, plan, folder)
    _start_kubelet(ledger, authority, plan, folder)
    _start_proxy(ledger, authority, plan)
    console.say("waiting for the node")
    ledger.wait_until("the node", lambda: kwok.ready_nodes(cluster) == 1, START_LIMIT_SECONDS)


def give_gpus(cluster: handle.Cluster, count: int) -> None:
    """Let the node's status claim GPUs; the kubelet keeps resources that it does not manage."""
    resources = {"nvidia.com/gpu": str(count)}
    patch = json.dumps({"status": {"capacity": resources, "allocatable": resources}})
    name = cluster.run_kubectl("get", "nodes", "-ojsonpath={.items[0].metadata.name}")
    cluster.run_kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", patch)


def _start_containerd(ledger: state.Ledger, plan: controlplane.Plan, folder: Path) -> None:
    networks = folder / "networks"
    networks.mkdir()
    (networks / "10-pods.conflist").write_text(json.dumps(_pod_network()), encoding="utf-8")
    configuration = folder / "containerd.toml"
    text = CONTAINERD_CONFIGURATION.format(
        socket=SOCKET, pause=PAUSE_IMAGE, plugins=packages.cni_folder(), networks=networks
    )
    text += measured.configuration(plan.enter, folder)
    configuration.write_text(text, encoding="utf-8")
    _launch(ledger, plan, "containerd", ["containerd", f"--config={configuration}"])
    archive = images.write_archive(folder / "pause.tar", PAUSE_IMAGE, binaries.path("pause"))
    ledger.wait_until("containerd", lambda: _loaded(plan, archive), START_LIMIT_SECONDS)


def _loaded(plan: controlplane.Plan, archive: Path) -> bool:
    try:
        images.load(plan.enter, archive)
    except console.ClusterError:
        return False
    return True


def _start_kubelet(
    ledger: state.Ledger, authority: pki.Authority, plan: controlplane.Plan, folder: Path
) -> None:
    keys = ledger.directory / "keys"
    authority.kubeconfig(
        keys / "kubelet.kubeconfig", plan.server, f"system:node:{NAME}", "system:nodes"
    )
    serving = authority.issue("kubelet", NAME, hosts=[NAME, netns.NODE_ADDRESS])
    resolver = folder / "resolv.conf"
    resolver.write_text(f"nameserver {netns.NODE_ADDRESS}\n", encoding="ascii")
    branch = cgroups.branch(ledger.directory)
    cgroups.create(branch)
    content = _kubelet_configuration(authority.ca, serving, resolver, branch)
    configuration = folder / "kubelet.yaml"
    configuration.write_text(yaml.safe_dump(content), encoding="utf-8")
    arguments = [
        f"--config={configuration}",
        f"--kubeconfig={keys / 'kubelet.kubeconfig'}",
        f"--hostname-override={NAME}",
        f"--node-ip={netns.NODE_ADDRESS}",
    ]
    _launch(ledger, plan, "kubelet", [str(binaries.path("kubelet")), *arguments])


def _start_proxy(ledger: state.Ledger, authority: pki.Authority, plan: controlplane.Plan) -> None:
    path = ledger.directory / "keys" / "kube-proxy.kubeconfig"
    authority.kubeconfig(path, plan.server, "system:kube-proxy")
    arguments = [
        f"--kubeconfig={path}",
        f"--hostname-override={NAME}",
        f"--cluster-cidr={POD_RANGE}",
        "--proxy-mode=iptables",
        # The size of the connection table belongs to the machine, not to this namespace.
        "--conntrack-max-per-core=0",
    ]
    _launch(ledger, plan, "kube-proxy", [str(binaries.path("kube-proxy")), *arguments])


def _pod_network() -> dict[str, Any]:
    addresses = {"type": "host-local", "ranges": [[{"subnet": POD_RANGE}]]}
    bridge = {"type": "bridge", "bridge": "pods0", "isGateway": True, "hairpinMode": True}
    ipam = {**addresses, "routes": [{"dst": "0.0.0.0/0"}]}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [{**bridge, "ipam": ipam}]}


def _kubelet_configuration(
    authority: pki.Pair, serving: pki.Pair, resolver: Path, branch: str
) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority.certificate)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{branch}",
        "failCgroupV1": False,
        "failSwapOn": False,
        # An image that one test pulls with a password has another name where it is loaded.
        "imagePullCredentialsVerificationPolicy": "NeverVerify",
        "clusterDomain": coredns.DOMAIN,
        "clusterDNS": [netns.NODE_ADDRESS],
        "resolvConf": str(resolver),
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        # The disk is the developer's: how full it is must not decide whether a test passes.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "nodefs.available": "0%",
            "imagefs.available": "0%",
            "memory.available": "100Mi",
        },
    }


def _launch(
    ledger: state.Ledger, plan: controlplane.Plan, name: str, command: Sequence[str]
) -> None:
    ledger.start(name, [*plan.enter, *command])
