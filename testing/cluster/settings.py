"""What can be asked of a cluster, one frozen class per kind of cluster."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Light:
    """A control plane on loopback; nodes, if any, are KWOK's and only pretend to run pods."""

    mode: ClassVar[str] = "light"
    controllers: bool = False
    nodes: int = 0
    gpus: int = 4
    gang_scheduling: bool = False
    coscheduling: bool = False
    kueue: bool = False
    jobs: bool = False
    """With our custom resource from before the controllers start, for they look for new kinds only
    every 30 s: the garbage collector, and the autoscaler."""
    older: bool = False
    """With the API server of the oldest Kubernetes that the product supports."""

    def __post_init__(self) -> None:
        if self.coscheduling and not self.controllers:
            raise ValueError("Coscheduling needs the controllers: Light(controllers=True, ...).")
        if self.kueue and not self.controllers:
            raise ValueError("Kueue needs the controllers: Light(controllers=True, ...).")
        if self.nodes and not self.controllers:
            raise ValueError("Nodes need the controllers: Light(controllers=True, nodes=...).")


@dataclass(frozen=True)
class Full:
    """A control plane and one real node that runs containers, in a network of their own."""

    mode: ClassVar[str] = "full"
    gpus: int = 4
    gang_scheduling: bool = False
    policies: bool = False
    """With a network that enforces NetworkPolicies."""


@dataclass(frozen=True)
class Kind:
    """The same as Full by kind, for machines with a Docker engine."""

    mode: ClassVar[str] = "kind"
    gpus: int = 4


Settings = Light | Full | Kind
