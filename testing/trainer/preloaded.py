"""What the forkserver imports before it forks; importing it must start no thread.

OpenBLAS and OpenMP start threads at import unless `OMP_NUM_THREADS` is 1, and a fork takes only the
calling thread along: what the others held would stay locked for ever.
"""

import gc
import importlib
import os
import pkgutil

import keras  # noqa: F401
import tensorflow as tf  # noqa: F401

import tfparallel_trainer
from tfparallel_trainer.contract import environment

os.environ.pop(environment.ON_SEPARATE_TRAINING, None)  # Each process has its own.
for module in pkgutil.walk_packages(tfparallel_trainer.__path__, "tfparallel_trainer."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)

THREADS = len(os.listdir("/proc/self/task"))
if THREADS != 1:
    raise RuntimeError(f"The forkserver has {THREADS} threads after its imports; it needs one.")

# What is alive now stays alive: no forked process has to copy the pages of it to look for garbage.
gc.freeze()
