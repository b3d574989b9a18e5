"""The inside of a full cluster: namespaces of its own for network, processes and mounts.

They live exactly as long as the process `init`: when it ends, the kernel ends every process
inside, drops every mount and every interface made there, and with them the packet filter's rules.
So nothing has to be undone piece by piece, and nothing outside is ever changed. For the same
reason the network namespace has no name in `ip netns`, which would be a mount to clean up.
"""

import shlex
import subprocess
import sys
from pathlib import Path

from testing.cluster import console, folders, process, state

OUTER = "namespaces"
INIT = "init"
NODE_ADDRESS = "172.30.0.2"
NODE_BRIDGE = "node0"
START_LIMIT_SECONDS = 60.0
HIDDEN = ("/run", "/var/lib", "/var/log")

# The kubelet insists on these values, which belong to the whole machine. Inside, files with the
# values lie over the real ones: the kubelet is content and the machine keeps its own.
PRETENDED_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def create(ledger: state.Ledger) -> tuple[str, ...]:
    """Make the namespaces with their mounts and network; returns the prefix that enters them."""
    kinds = ["--mount", "--net", "--pid", "--fork", "--mount-proc"]
    manner = ["--propagation=slave", "--kill-child=SIGKILL"]
    first = [sys.executable, "-I", str(folders.SOURCE / "init.py")]
    outer = ledger.start(OUTER, ["unshare", *kinds, *manner, "--", *first])
    ledger.wait_until("the namespaces", lambda: _is_inside(_child(outer.pid)), START_LIMIT_SECONDS)
    ledger.adopt(INIT, _child(outer.pid), outer.log)
    prefix = enter(ledger.state)
    _run(prefix, _mounts(ledger.directory))
    _run(prefix, _network())
    return prefix


def enter(cluster_state: state.ClusterState) -> tuple[str, ...]:
    """The command prefix that enters the namespaces of a cluster."""
    return _prefix(cluster_state, mount="mnt", net="net", pid="pid")


def enter_network(cluster_state: state.ClusterState) -> tuple[str, ...]:
    """The prefix for a program of ours that needs the host's files and the cluster's network."""
    return _prefix(cluster_state, net="net", pid="pid")


def end(cluster_state: state.ClusterState) -> None:
    """End everything inside and wait until it is gone."""
    insides = {record.name: record for record in cluster_state.processes}
    process.stop(insides[name] for name in (INIT, OUTER) if name in insides)
    process.stop(cluster_state.processes)


def _prefix(cluster_state: state.ClusterState, **namespaces: str) -> tuple[str, ...]:
    pid = next((record.pid for record in cluster_state.processes if record.name == INIT), None)
    if pid is None:
        raise console.ClusterError(
            f"{cluster_state.name} has no inside: it is a {cluster_state.mode} cluster."
        )
    return (
        "nsenter",
        *(f"--{kind}=/proc/{pid}/ns/{file}" for kind, file in namespaces.items()),
        "--",
    )


def _child(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return int(children[0]) if children else 0


def _is_inside(pid: int) -> bool:
    """Whether init has taken over: from then on its /proc is the one of the new namespaces."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return False
    return b"init.py" in command and b"unshare" not in command


def _mounts(directory: Path) -> list[str]:
    """Fresh folders over those that a node writes to, so that the real ones stay as they are."""
    lines = ["mount --make-rshared /"]
    for hidden in HIDDEN[1:]:
        private = directory / "node" / hidden.strip("/")
        private.mkdir(parents=True)
        lines.append(f"mount --bind {shlex.quote(str(private))} {hidden}")
    values = directory / "node" / "sysctl"
    for name, value in PRETENDED_SYSCTLS.items():
        file = values / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n", encoding="ascii")
        lines.append(f"mount --bind {shlex.quote(str(file))} /proc/sys/{name}")
    lines.append("mount -t tmpfs -o mode=755 tmpfs /run")
    return lines


def _network() -> list[str]:
    return [
        "ip link set lo up",
        f"ip link add {NODE_BRIDGE} type bridge",
        f"ip address add {NODE_ADDRESS}/24 dev {NODE_BRIDGE}",
        f"ip link set {NODE_BRIDGE} up",
        # It leads nowhere, but service addresses are only rewritten on their way to somewhere.
        f"ip route add default dev {NODE_BRIDGE}",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        "echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables",
    ]


def _run(prefix: tuple[str, ...], lines: list[str]) -> None:
    script = "\n".join(["set -eu", *lines])
    done = subprocess.run(
        [*prefix, "sh", "-c", script],
        env=process.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise console.ClusterError(f"Preparing the namespaces failed: {done.stderr.strip()}")
