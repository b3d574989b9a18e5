#!/usr/bin/env bash
# Processes that save a model to one path at the same time break the file, or one of them fails.
#
# Keras 3.15.1, TensorFlow 2.21.0. A script for several workers often ends with `model.save(path)` on each of them, on a
# volume that they share. Keras writes a .keras file in place, without a lock, so parts of both mix: zipfile then finds a
# wrong checksum. Of 20 saves by two processes, 15 were broken. A .weights.h5 file is locked, so the second process ends
# with BlockingIOError.
set -euo pipefail
source "$(dirname "$0")/keras.bash"

shown=$(run <<'PYTHON'
import multiprocessing
import os
import tempfile
import zipfile

TIMES = 20
forked = multiprocessing.get_context("fork")


def is_whole(path):
    """Whether a .keras file can be read; of others h5py has cared."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except zipfile.BadZipFile:
        return False


def save(name, number, barrier, errors):
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256), keras.layers.Dense(64)])
    for weight in model.weights:
        weight.assign(np.full(weight.shape, float(number)))
    for _ in range(TIMES):
        barrier.wait()
        try:
            (model.save if name.endswith(".keras") else model.save_weights)(name)
        except OSError as error:
            errors.put(type(error).__name__)
        barrier.wait()
        barrier.wait()


os.chdir(tempfile.mkdtemp())
for name in ("model.keras", "model.weights.h5"):
    barrier, errors = forked.Barrier(3), forked.SimpleQueue()
    writers = [forked.Process(target=save, args=(name, number, barrier, errors)) for number in (1, 2)]
    for one in writers:
        one.start()
    broken = 0
    for _ in range(TIMES):
        barrier.wait()
        barrier.wait()
        broken += name.endswith(".keras") and not is_whole(name)
        barrier.wait()
    for one in writers:
        one.join()
    print(f"{name}: some broken: {broken > 0}, {'none' if errors.empty() else errors.get()} raised")
PYTHON
)
expect "saves to one .keras file" "$shown" "model.keras: some broken: True, none raised"
expect "saves to one .h5 file" "$shown" "model.weights.h5: some broken: False, BlockingIOError raised"
