"""Jobs on the network of their nodes.

Each replica has its own port, so that any two may share a node.
"""

from tfparallel_operator.core.pods import containers

FIRST_PORT = 10_000
END_PORT = 30_000
"""End of the range of ports for jobs.

Node ports of Services begin here, and the ports of outgoing connections follow.
"""

INTERFACES = "NCCL_SOCKET_IFNAME"
_OF_PODS = "^lo,docker,veth,cni,cali,cilium,flannel"
"""Interfaces of a node that lead only to other pods of the same node, or to none."""


def prepare(container: containers.ContainerBuilder) -> None:
    """Put a pod on its node's network, in place. It still resolves the names of its peers."""
    container.pod_spec["hostNetwork"] = True
    container.pod_spec.setdefault("dnsPolicy", "ClusterFirstWithHostNet")
    container.set_env(INTERFACES, _OF_PODS)
