"""Addresses of the replicas on loopback."""

import dataclasses
from collections.abc import Mapping

from tfparallel.backends.local import name_substitution, ports
from tfparallel_operator.core import replicas
from tfparallel_operator.core.layout import Layout


@dataclasses.dataclass(frozen=True, slots=True)
class RelayedAddress:
    """The addresses of a replica to which the others connect through a relay."""

    address: str
    """host:port at which the replica listens."""
    relay: str
    """host:port of the relay, to which the others connect."""


def assign(layout: Layout, relayed: Mapping[str, RelayedAddress]) -> Mapping[replicas.Replica, str]:
    """Give each replica an address for the whole run. A restarted replica keeps its port."""
    every = layout.all_replicas
    allocated = iter(ports.allocate(sum(replica.name not in relayed for replica in every)))
    return {
        replica: relayed[replica.name].address
        if replica.name in relayed
        else f"{ports.HOST}:{next(allocated)}"
        for replica in every
    }


def build_substitutions(
    layout: Layout,
    addresses: Mapping[replicas.Replica, str],
    relayed: Mapping[str, RelayedAddress],
) -> Mapping[str, name_substitution.Substitution]:
    """Return, by pod name, what replaces the addresses of the cluster in a replica's texts."""
    for_others = {
        replica: relayed[replica.name].relay if replica.name in relayed else address
        for replica, address in addresses.items()
    }

    def substitute(
        addresses_by_replica: Mapping[replicas.Replica, str],
    ) -> name_substitution.Substitution:
        return name_substitution.Substitution(
            {layout.address(replica): address for replica, address in addresses_by_replica.items()}
        )

    shared = substitute(for_others)
    return {
        replica.pod_name(layout.job.metadata.name): shared
        if for_others[replica] == address
        else substitute({**for_others, replica: address})
        for replica, address in addresses.items()
    }
