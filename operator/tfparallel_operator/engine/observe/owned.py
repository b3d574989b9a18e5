"""The resources of a job's children, and which of them the cluster may lack."""

from collections.abc import Mapping

from tfparallel_operator.api import types
from tfparallel_operator.api_server import resources
from tfparallel_operator.core import decision
from tfparallel_operator.core.queue import gang, gang_plugin

POD_GROUPS: Mapping[types.GangScheduler, resources.Resource] = {
    scheduler: resources.Resource(plugin.api_versions[0], "podgroups", plugin.api_versions[1:])
    for scheduler, plugin in gang.PLUGINS.items()
}

OPTIONAL = frozenset({*POD_GROUPS.values(), resources.WORKLOADS})
"""The resources of software that need not be installed."""

BY_TYPE: Mapping[decision.ObjectType, resources.Resource] = {
    decision.POD: resources.PODS,
    ("v1", "Service"): resources.SERVICES,
    decision.CONFIG_MAP: resources.CONFIG_MAPS,
    decision.CLAIM: resources.CLAIMS,
    (resources.NETWORK_POLICIES.api_version, "NetworkPolicy"): resources.NETWORK_POLICIES,
    decision.WORKLOAD: resources.WORKLOADS,
    **{
        gang_plugin.group_type(plugin): POD_GROUPS[scheduler]
        for scheduler, plugin in gang.PLUGINS.items()
    },
}
"""By apiVersion and kind of their manifests."""
