"""A real scheduler puts the pods of a mesh where their labels and preferences ask for."""

import collections

from testing.operator import objects
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names


async def test_pods_that_share_layers_come_to_one_node(namespace_with_nodes: Namespace) -> None:
    """Four nodes of four GPUs, and four groups of two pods with two GPUs each."""
    namespace = namespace_with_nodes
    job = objects.job(strategy="ModelSplit", mesh={"data": 4, "tensor": 4}, trainer={"epochs": 1})
    worker = {"replicas": 8, "devices": 2, "template": objects.template()}
    job["spec"]["tfReplicaSpecs"] = {"Worker": worker}
    async with namespace.operator():
        await namespace.create_job(job)
        await namespace.until_state("Running")
        nodes = collections.defaultdict(set)
        for pod in (await namespace.pods()).values():
            nodes[pod["spec"]["nodeName"]].add(pod["metadata"]["labels"][names.LABEL_MESH_GROUP])
        assert sorted(map(sorted, nodes.values())) == [["0"], ["1"], ["2"], ["3"]]
