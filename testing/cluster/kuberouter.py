"""Enforces NetworkPolicies on the node: kube-router as k3s publishes it (iptables and ipset)."""

import subprocess

from testing.cluster import binaries, controlplane, handle, netns, node, pki, process, state

MODULE = "kuberouter"
COMMANDS = ("ipset",)
ROLES = ("view", "system:node-proxier")
"""Roles to read pods, namespaces, policies and nodes."""

ACCEPTED = "0x20000/0x20000"
"""The mark of allowed packets: the chain sets it once all rules exist."""

START_LIMIT_SECONDS = 60.0


def start(
    ledger: state.Ledger, authority: pki.Authority, plan: controlplane.Plan, cluster: handle.Cluster
) -> None:
    """Start it in the node's network, and wait until its rules are there."""
    path = ledger.directory / "keys" / "kuberouter.kubeconfig"
    authority.kubeconfig(path, plan.server, MODULE)
    for role in ROLES:
        name = f"{MODULE}-{role.rpartition(':')[2]}"
        command_line = [f"--clusterrole={role}", f"--user={MODULE}"]
        cluster.run_kubectl("create", "clusterrolebinding", name, *command_line)
    arguments = [
        f"--kubeconfig={path}",
        f"--node={node.NAME}",
        f"--services={controlplane.SERVICE_RANGE}",
    ]
    ledger.start(MODULE, [*plan.enter, str(binaries.path(MODULE)), *arguments])
    ledger.wait_until("network policies", lambda: _rules_are_set(ledger.state), START_LIMIT_SECONDS)


def _rules_are_set(cluster_state: state.ClusterState) -> bool:
    command = [*netns.enter(cluster_state), "iptables", "--list-rules", "FORWARD"]
    asked = subprocess.run(
        command, env=process.environment(), capture_output=True, text=True, check=False
    )
    return ACCEPTED in asked.stdout
