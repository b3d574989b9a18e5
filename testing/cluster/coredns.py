"""The cluster's name server, on the node's own address."""

import subprocess
import sys

from testing.cluster import binaries, controlplane, handle, netns, pki, process, state

DOMAIN = "cluster.local"
READY = f"{netns.NODE_ADDRESS}:8181"
START_LIMIT_SECONDS = 90.0
CONFIGURATION = """\
.:53 {{
    bind {address}
    errors
    ready {ready}
    cache 5
    kubernetes {domain} {{
        kubeconfig {kubeconfig}
        ttl 5
    }}
}}
"""


def start(
    ledger: state.Ledger, authority: pki.Authority, plan: controlplane.Plan, cluster: handle.Cluster
) -> None:
    """Start CoreDNS with the right to read services and their endpoints."""
    path = ledger.directory / "keys" / "coredns.kubeconfig"
    authority.kubeconfig(path, plan.server, "coredns")
    role = ["--clusterrole=view", "--user=coredns"]
    cluster.run_kubectl("create", "clusterrolebinding", "coredns", *role)
    configuration = ledger.directory / "node" / "Corefile"
    text = CONFIGURATION.format(
        address=netns.NODE_ADDRESS, ready=READY, domain=DOMAIN, kubeconfig=path
    )
    configuration.write_text(text, encoding="utf-8")
    program = str(binaries.path("coredns"))
    ledger.start("coredns", [*plan.enter, program, "-conf", str(configuration)])
    ledger.wait_until("the name server", lambda: _ready(ledger.state), START_LIMIT_SECONDS)


def _ready(cluster_state: state.ClusterState) -> bool:
    """Ask from inside, where the name server is."""
    question = f"import urllib.request as r; r.urlopen('http://{READY}/ready', timeout=1)"
    command = [*netns.enter_network(cluster_state), sys.executable, "-I", "-c", question]
    asked = subprocess.run(command, env=process.environment(), capture_output=True, check=False)
    return asked.returncode == 0
