"""What each device holds of a model: `rank_bytes.py MODEL STAGES TENSOR [REPLICAS]`.

The ranks of the mesh are built one after the other, each on a device of its own of this process.
Replicas share the optimizer's state.
"""

import dataclasses
import math
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks.models import stacks
from benchmarks.scripts import events
from testing.trainer import split_partition
from tfparallel_trainer import user
from tfparallel_trainer.comms import devices, shape
from tfparallel_trainer.engines.split.execution import rank_model
from tfparallel_trainer.engines.split.model import recording, skeleton
from tfparallel_trainer.objective import replica


def main(name, stages, tensor, replicas=1):
    mesh = shape.MeshShape(data=replicas, stage=stages, tensor=tensor)
    devices.prepare(mesh.size, alone=True)
    functions: dict[str, Callable[..., Any]] = {
        "build_model": stacks.ALL[name],
        "compile_model": stacks.compile_model,
    }
    module = user.Module(pathlib.Path(stacks.__file__), functions)
    bare = skeleton.build(module, 0)
    recorded = recording.record(bare)
    divided = split_partition.divide(recorded, mesh)
    divided = dataclasses.replace(divided, shards_optimizer=replicas > 1)
    kept = []
    for rank in range(mesh.size):
        replica.forget_names()
        before = taken()
        local_rank = rank_model.build(
            module, bare, divided, rank, f"/device:CPU:{rank}", stacks.example(bare)
        )
        kept.append(local_rank)
        events.write(
            "rank",
            allocated=taken() - before,
            variables=sum(
                map(size, [*local_rank.weights.values(), *local_rank.optimizer.variables])
            ),
            gradients=sum(map(size, local_rank.trained.values())),
            state=local_rank.optimizer.state_bytes,
        )


def taken():
    return tf.config.experimental.get_memory_info("CPU:0")["current"]


def size(variable):
    return math.prod(variable.shape) * tf.as_dtype(variable.dtype).size


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
