"""How long planning takes: `planning.py DEVICES REPEATS [MODELS]`, of so many models or of all."""

import gc
import pathlib
import sys
import time

import keras

from benchmarks.scripts import events
from testing.trainer import planned_models
from tfparallel_trainer import user
from tfparallel_trainer.engines.split.model import recording, skeleton
from tfparallel_trainer.engines.split.planning import choose, hardware, planner, search_space


def main(count, repeats, most=None):
    gc.freeze()  # as `tfparallel plan` does
    cluster = hardware.DeviceCluster(processes=count)
    for name, build in list(planned_models.REAL.items())[:most]:
        model = skeleton.build(user.Module(pathlib.Path(name), {"build_model": build}), 0)
        for _ in range(repeats):
            began = time.perf_counter()
            recorded = recording.record(model)
            recorded_at = time.perf_counter()
            subject = planner.subject(recorded, keras.optimizers.Adam(), cluster)
            choose.plan_for(subject, search_space.Constraints())
            ended = time.perf_counter()
            events.write(
                "planned", model=name, recorded=recorded_at - began, planned=ended - recorded_at
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
