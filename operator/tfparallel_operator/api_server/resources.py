"""The resources that the operator uses, and their addresses."""

import dataclasses

from tfparallel_operator.api import names


@dataclasses.dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object, as the API server addresses it."""

    api_version: str
    """The newest version that the operator speaks."""
    plural: str
    older: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    """Versions that say the same, newest first, of API servers that do not serve the newest."""

    @property
    def group(self) -> str:
        """The API group; empty for the core's."""
        return self.api_version.rpartition("/")[0]

    def at(self, api_version: str) -> "Resource":
        """Return the resource as one of its versions addresses it."""
        return Resource(api_version, self.plural)

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """Return the path of one object, or of all of a namespace, or of all there are."""
        root = "/api" if "/" not in self.api_version else "/apis"
        parts = [root, self.api_version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


def plural_of(path: str) -> str:
    """Return the plural of what an address is about; empty when it is no object's."""
    parts = path.removeprefix("/").split("/")
    tail = parts[2:] if parts[0] == "api" else parts[3:]
    if tail[:1] == ["namespaces"] and len(tail) > 2:
        tail = tail[2:]
    return tail[0] if tail else ""


JOBS = Resource(names.API_VERSION, names.PLURAL)
PODS = Resource("v1", "pods")
SERVICES = Resource("v1", "services")
CONFIG_MAPS = Resource("v1", "configmaps")
CLAIMS = Resource("v1", "persistentvolumeclaims")
NETWORK_POLICIES = Resource("networking.k8s.io/v1", "networkpolicies")
SECRETS = Resource("v1", "secrets")
NODES = Resource("v1", "nodes")
NAMESPACES = Resource("v1", "namespaces")
DEPLOYMENTS = Resource("apps/v1", "deployments")
EVENTS = Resource("events.k8s.io/v1", "events")
CORE_EVENTS = Resource("v1", "events")
"""The same objects in the form in which they may have the times by which kubectl sorts them."""
LEASES = Resource("coordination.k8s.io/v1", "leases")
TOKEN_REVIEWS = Resource("authentication.k8s.io/v1", "tokenreviews")

_KUEUE = "kueue.x-k8s.io/v1beta2"
WORKLOADS = Resource(_KUEUE, "workloads", ("kueue.x-k8s.io/v1beta1",))
"""Kueue's: what asks for quota; need not be installed."""

RESOURCE_FLAVORS = Resource(_KUEUE, "resourceflavors")
WORKLOAD_PRIORITY_CLASSES = Resource(_KUEUE, "workloadpriorityclasses")
"""Kueue serves all its kinds in the same versions."""
PRIORITY_CLASSES = Resource("scheduling.k8s.io/v1", "priorityclasses")
