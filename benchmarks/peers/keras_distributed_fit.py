"""Keras' own fit, on the backend of KERAS_BACKEND: `keras_distributed_fit.py DISTRIBUTION JIT`.

DISTRIBUTION is `none`, or, on JAX, `data` or `model`. JIT is `auto`, `yes` or `no`.
"""

import sys

import keras
import numpy as np

from benchmarks.peers import run, workloads

JIT = {"auto": "auto", "yes": True, "no": False}


def main(distribution, jit):
    contest = run.contest()
    if distribution != "none":
        keras.distribution.initialize(contest.addresses[0], contest.processes, contest.rank)
        keras.distribution.set_distribution(_distribution(distribution, contest.processes))
    model = contest.model.build(keras)
    model.set_weights(contest.weights())
    model.compile(
        workloads.optimizer(keras, contest.model),
        workloads.loss(keras, contest.model, "sum_over_batch_size"),
        jit_compile=JIT[jit],
    )
    is_shared = distribution == "data"
    callbacks = run.fit_callbacks(contest, keras.callbacks.Callback)
    for epoch, batches in enumerate(contest.epochs(shared=is_shared)):
        x, y = (np.concatenate(part) for part in zip(*batches, strict=True))
        model.fit(
            x,
            y,
            batch_size=len(batches[0][0]),
            initial_epoch=epoch,
            epochs=epoch + 1,
            shuffle=False,
            verbose=0,
            callbacks=callbacks,
        )
    run.leave(reports=contest.reports)


def _distribution(kind, processes):
    if kind == "data":
        return keras.distribution.DataParallel(auto_shard_dataset=False)
    mesh = keras.distribution.DeviceMesh((1, processes), ["batch", "model"])
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*(query|key|value)/kernel"] = (None, "model", None)
    layouts[".*(query|key|value)/bias"] = ("model", None)
    layouts[".*attention_output/kernel"] = ("model", None, None)
    for wide in range(0, 2 * workloads.BLOCKS, 2):
        suffix = f"_{wide}" if wide else ""
        layouts[f"dense{suffix}/kernel"] = (None, "model")
        layouts[f"dense{suffix}/bias"] = ("model",)
        layouts[f"dense_{wide + 1}/kernel"] = ("model", None)
    layouts[f"dense_{2 * workloads.BLOCKS}/kernel"] = (None, "model")
    layouts[f"dense_{2 * workloads.BLOCKS}/bias"] = ("model",)
    return keras.distribution.ModelParallel(
        layout_map=layouts, batch_dim_name="batch", auto_shard_dataset=False
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
