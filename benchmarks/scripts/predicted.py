"""How long a step of `benchmarks.models.planned` should take: `predicted.py BATCH MESH…`.

A mesh is written as JSON, as in a job. Nodes are measured once for all of them, so are links.
"""

import dataclasses
import json
import math
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks.models import planned
from benchmarks.scripts import events
from tfparallel_trainer import user
from tfparallel_trainer.engines.split.model import recording, skeleton
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
    functions: dict[str, Callable[..., Any]]
    functions = {"build_model": planned.build_model, "compile_model": planned.compile_model}
    module = user.Module(pathlib.Path(planned.__file__), functions)
    model = skeleton.build(module, 0)
    recorded = recording.record(model)
    skeleton.compile_model(module, model)
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
