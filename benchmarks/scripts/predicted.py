"""How long a step of `benchmarks.models.planned` should take: `predicted.py BATCH MESH…`.

A mesh is written as JSON, as in a job. Nodes are measured once for all of them, so are links.
"""

import dataclasses
import json
import math
import sys

import tensorflow as tf

from benchmarks.scripts import events, planned_model
from tfparallel_trainer.engines.split.planning import (
    calibrate,
    choose,
    hardware,
    links,
    planner,
    search_space,
)


def main(batch, written):
    tf.config.threading.set_inter_op_parallelism_threads(1)
    model, recorded = planned_model.record()
    microbatch = max(1, batch // 2)
    times = calibrate.measure(recorded, microbatch)
    device = hardware.Device(update=calibrate.update(model.optimizer, recorded))
    measured = hardware.DeviceCluster(device=device)
    meshes = [json.loads(line) for line in written]
    if any(meshes):
        measured = links.measure(measured)
    for mesh in meshes:
        microbatches = mesh.pop("microbatches", 1)
        cluster = dataclasses.replace(measured, processes=math.prod(mesh.values()))
        subject = planner.subject(recorded, model.optimizer, cluster, None, times)
        constraints = search_space.Constraints(mesh=mesh, microbatches=microbatches, batch=batch)
        plan = choose.plan_for(subject, constraints)
        events.write("planned", seconds=plan.step_seconds)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
