"""What each device of `benchmarks.models.planned` should take: `planned_memory.py BATCH MESH…`.

A mesh is written as JSON, as in a job.
"""

import math
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.models import planned
from benchmarks.scripts import events
from tfparallel_trainer import user
from tfparallel_trainer.contract import job_file
from tfparallel_trainer.engines.split import plan_resolution
from tfparallel_trainer.engines.split.model import recording, skeleton
from tfparallel_trainer.engines.split.planning import hardware


def main(batch, written):
    functions: dict[str, Callable[..., Any]]
    functions = {"build_model": planned.build_model, "compile_model": planned.compile_model}
    module = user.Module(pathlib.Path(planned.__file__), functions)
    model = skeleton.build(module, 0)
    recorded = recording.record(model)
    skeleton.compile_model(module, model)
    for mesh in map(job_file.Mesh.model_validate_json, written):
        cluster = hardware.DeviceCluster(processes=math.prod(mesh.axes.values()))
        resolved = plan_resolution.resolve(
            recorded, mesh, batch, cluster, model.optimizer, model.loss
        )
        plan = resolved.plan
        if plan is None:
            raise ValueError(f"the mesh {mesh} has cuts, so nothing is planned")
        peaks = [plan.stages[rank.stage].holds.peak for rank in plan.ranks]
        events.write("planned", peaks=peaks)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
