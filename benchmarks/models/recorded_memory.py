"""The models of `planned`, in processes that record the most bytes of their tensors.

Each process has a file in the folder that `BENCHMARK_MEMORY` names.
"""

import functools
import json
import os
import pathlib
import threading
import time

from benchmarks.models import planned

_WINDOW_SECONDS = 0.1

build_model = planned.build_model
compile_model = planned.compile_model


def training_data():
    _record()  # now that TensorFlow's devices are there
    return planned.training_data()


@functools.cache
def _record():
    threading.Thread(target=_watch, daemon=True).start()


def _watch():
    """Record the peak of one window of time after the other, with the moment of its end."""
    import tensorflow as tf

    task = json.loads(os.environ["TF_CONFIG"])["task"]
    path = pathlib.Path(os.environ["BENCHMARK_MEMORY"]) / f"{task['type']}-{task['index']}"
    with path.open("a", encoding="utf-8", buffering=1) as file:
        while True:
            time.sleep(_WINDOW_SECONDS)
            peak = tf.config.experimental.get_memory_info("CPU:0")["peak"]
            tf.config.experimental.reset_memory_stats("CPU:0")
            file.write(f"{time.time()} {peak}\n")
