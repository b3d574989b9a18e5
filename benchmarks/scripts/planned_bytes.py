"""What a step of `benchmarks.models.layers` should send: `planned_bytes.py BATCH TENSOR`."""

import math
import pathlib
import sys

from benchmarks.models import layers
from benchmarks.scripts import events
from testing.trainer import split_partition, split_traffic
from tfparallel_trainer import user
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.model import graph, recording, skeleton


def main(batch, ranks):
    functions = {"build_model": layers.build_model}
    bare = skeleton.build(user.Module(pathlib.Path(layers.__file__), functions), 0)
    mesh = shape.MeshShape(tensor=ranks)
    divided = split_partition.divide(recording.record(bare), mesh)
    plan = divided.plan
    sent = sum(cost.sent(batch, ranks) for cost in split_traffic.list_traffic(plan))
    for key, shard in plan.variables.items():
        if shard.summed:
            sizes = shard.layout.local(tuple(divided.model.variables[key].shape), {})
            size = math.prod(length or 0 for length in sizes) * graph.itemsize("float32")
            sent += 2 * (ranks - 1) / ranks * size
    events.write("planned", bytes=ranks * sent)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
