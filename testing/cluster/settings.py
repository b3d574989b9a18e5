"""Settings of a cluster, one frozen class for each kind of cluster."""

import enum
from dataclasses import dataclass
from typing import ClassVar


class Release(enum.StrEnum):
    """A version of Kubernetes, by the Go module that pins it."""

    NEWEST = "tools"
    OLDEST = "older"
    """The oldest that the product supports; its API server alone."""
    ALPHA_GANGS = "alphagangs"
    """The one whose gangs are of v1alpha2; its control plane."""


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
    release: Release = Release.NEWEST

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
    coscheduling: bool = False
    kueue: bool = False


@dataclass(frozen=True)
class Kind:
    """The same as Full by kind, for machines with a Docker engine."""

    mode: ClassVar[str] = "kind"
    gpus: int = 4


Settings = Light | Full | Kind
