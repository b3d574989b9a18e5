"""The resources that the operator uses, and their paths."""

import dataclasses

from tfparallel_operator.api import names


@dataclasses.dataclass(frozen=True, slots=True)
class Resource:
    """A resource of the API server."""

    api_version: str
    """The newest version that the operator supports."""
    plural: str
    older: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    """Equivalent versions, newest first, for API servers without the newest."""

    @property
    def group(self) -> str:
        """The API group; empty: core."""
        return self.api_version.rpartition("/")[0]

    def at(self, api_version: str) -> "Resource":
        """Return the resource in one of its versions."""
        return Resource(api_version, self.plural)

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """Return the path of an object, of all objects of a namespace, or of all objects."""
        root = "/api" if "/" not in self.api_version else "/apis"
        parts = [root, self.api_version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


def plural_of(path: str) -> str:
    """Return the plural of the resource of a path; empty: the path has none."""
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
"""The same objects in the older form, which has the times by which kubectl sorts them."""
LEASES = Resource("coordination.k8s.io/v1", "leases")
TOKEN_REVIEWS = Resource("authentication.k8s.io/v1", "tokenreviews")

_KUEUE = "kueue.x-k8s.io/v1beta2"
WORKLOADS = Resource(_KUEUE, "workloads", ("kueue.x-k8s.io/v1beta1",))
"""Requests for quota; Kueue need not be installed."""

RESOURCE_FLAVORS = Resource(_KUEUE, "resourceflavors")
WORKLOAD_PRIORITY_CLASSES = Resource(_KUEUE, "workloadpriorityclasses")
"""Kueue serves all its kinds in the same versions."""
PRIORITY_CLASSES = Resource("scheduling.k8s.io/v1", "priorityclasses")
