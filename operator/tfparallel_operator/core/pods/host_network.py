"""Jobs on the network of their nodes: a port for each replica, so that any two may share a node."""

from tfparallel_operator.core.pods import containers

FIRST_PORT = 10_000
END_PORT = 30_000
"""Ports that are given out end before this one: node ports of Services begin here.

Above them lie those that systems give to outgoing connections."""

INTERFACES = "NCCL_SOCKET_IFNAME"
_OF_PODS = "^lo,docker,veth,cni,cali,cilium,flannel"
"""Interfaces of a node that lead to other pods of the node alone, or to none."""


def prepare(container: containers.Container) -> None:
    """Put a pod on its node's network, in place; the names of peers are resolved as in any pod."""
    container.pod_spec["hostNetwork"] = True
    container.pod_spec.setdefault("dnsPolicy", "ClusterFirstWithHostNet")
    container.set_env(INTERFACES, _OF_PODS)
