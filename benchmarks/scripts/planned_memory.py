"""What each device of `benchmarks.models.planned` should take: `planned_memory.py BATCH MESH…`.

A mesh is written as JSON, as in a job.
"""

import math
import sys

from benchmarks.scripts import events, planned_model
from tfparallel_trainer.contract import job_file
from tfparallel_trainer.engines.split import plan_resolution
from tfparallel_trainer.engines.split.planning import hardware


def main(batch, written):
    model, recorded = planned_model.record()
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
