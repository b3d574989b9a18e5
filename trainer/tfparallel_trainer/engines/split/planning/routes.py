"""Which links the ranks of a mesh use. Pure."""

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.planning import hardware


def within(mesh: shape.Mesh, cluster: hardware.Cluster) -> hardware.Link:
    """The slowest link between ranks that split layers together."""
    axes = (shape.Axis.TENSOR, shape.Axis.SPATIAL)
    return cluster.link({rank for axis in axes for rank in mesh.group(0, axis).ranks})


def between(mesh: shape.Mesh, cluster: hardware.Cluster, source: int, target: int) -> hardware.Link:
    """The slowest link between ranks of two stages that send to each other."""
    slowest = cluster.inside
    for rank in range(mesh.size):
        along = mesh.group(rank, shape.Axis.STAGE).ranks
        link = cluster.link((along[source], along[target]))
        slowest = link if link.bandwidth < slowest.bandwidth else slowest
    return slowest
