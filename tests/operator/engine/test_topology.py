"""A real scheduler puts the pods of a mesh where their labels and preferences ask for."""

import collections

from testing.operator import harness, objects
from tfparallel_operator.api import names


async def test_pods_that_share_layers_come_to_one_node(place_with_nodes: harness.Place) -> None:
    """Four nodes of four GPUs, and four groups of two pods with two GPUs each."""
    place = place_with_nodes
    job = objects.job(strategy="ModelSplit", mesh={"data": 4, "tensor": 4}, trainer={"epochs": 1})
    worker = {"replicas": 8, "devices": 2, "template": objects.template()}
    job["spec"]["tfReplicaSpecs"] = {"Worker": worker}
    async with place.operator():
        await place.create_job(job)
        await place.until_state("Running")
        nodes = collections.defaultdict(set)
        for pod in (await place.pods()).values():
            nodes[pod["spec"]["nodeName"]].add(pod["metadata"]["labels"][names.LABEL_MESH_GROUP])
        assert sorted(map(sorted, nodes.values())) == [["0"], ["1"], ["2"], ["3"]]
