"""How long planning takes: `planning.py DEVICES REPEATS MODEL…`, by names of `keras.applications`
or of `tests.trainer.planned_models`.
"""

import gc
import pathlib
import sys
import time

import keras

from benchmarks.scripts import told
from tests.trainer import planned_models
from tfparallel_trainer import user
from tfparallel_trainer.split.model import recording, skeleton
from tfparallel_trainer.split.planning import choose, devices, settings, subjects


def main(count, repeats, names):
    gc.freeze()  # as `tfparallel plan` does
    cluster = devices.Cluster(processes=count)
    for name in names:
        model = skeleton.build(user.Module(pathlib.Path(name), {"build_model": made_by(name)}), 0)
        for _ in range(repeats):
            began = time.perf_counter()
            recorded = recording.record(model)
            known = time.perf_counter()
            subject = subjects.of(recorded, keras.optimizers.Adam(), cluster)
            choose.plan_for(subject, settings.Wanted())
            ended = time.perf_counter()
            told.tell("planned", model=name, recorded=known - began, planned=ended - known)


def made_by(name):
    if hasattr(keras.applications, name):
        return lambda: getattr(keras.applications, name)(weights=None)
    return getattr(planned_models, name)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
