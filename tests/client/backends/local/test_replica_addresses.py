"""Addresses of replicas before which a relay stands."""

import json

from testing.operator import local_jobs as jobs
from tfparallel.backends.local import cluster, replica_addresses
from tfparallel_operator.api import load
from tfparallel_operator.core.pods import cluster_spec

RELAYED = {
    "worker-0": replica_addresses.RelayedAddress(address="127.0.0.1:9000", relay="127.0.0.1:9001")
}

WORKERS = {"replicas": 2, "template": jobs.template(jobs.shell("true"))}


def test_a_replica_knows_its_own_address_and_the_others_know_its_relay() -> None:
    document = jobs.job({"Chief": jobs.shell("true"), "Worker": WORKERS})
    layout = cluster.lay_out(load.parse_job(document))
    addresses = replica_addresses.assign(layout, RELAYED)
    substitutions = replica_addresses.build_substitutions(layout, addresses, RELAYED)
    chief, first, second = layout.all_replicas
    assert addresses[first] == "127.0.0.1:9000"
    assert len(set(addresses.values())) == 3
    for replica in (chief, first, second):
        text = substitutions[replica.pod_name("job")].apply(cluster_spec.tf_config(layout, replica))
        assert json.loads(text)["cluster"] == {
            "chief": [addresses[chief]],
            "worker": [
                "127.0.0.1:9000" if replica == first else "127.0.0.1:9001",
                addresses[second],
            ],
        }
