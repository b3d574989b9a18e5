"""How many microbatches stages hold: `activations.py STAGES MICROBATCHES ROWS`.

The stages are devices of this process, and TensorFlow's profiler tells what operations asked for.
"""

import itertools
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from benchmarks.scripts import events, requested
from testing.trainer import split_partition
from tfparallel_trainer import user
from tfparallel_trainer.comms import devices as machine
from tfparallel_trainer.comms import shape
from tfparallel_trainer.data import arrays, batch_division
from tfparallel_trainer.engines.split.execution import pipeline_steps, ranks
from tfparallel_trainer.engines.split.model import recording, skeleton
from tfparallel_trainer.engines.split.pipeline import schedule
from tfparallel_trainer.objective import replica

LAYERS = 12
"""Of each stage."""
WIDTH = 64
_NARROW = 2
_generations = itertools.count()
"""Of meshes of this process."""


def peak(
    order: schedule.Schedule,
    devices: Sequence[str],
    microbatches: int,
    rows: int,
    *,
    recomputes: bool = False,
) -> int:
    """The most bytes that the operations of a step had at a time; arguments as of `build_step`."""
    step = build_step(order, devices, microbatches, rows, recomputes=recomputes)
    step(0)
    return requested.most(lambda: step(1))


def build_step(
    order: schedule.Schedule,
    devices: Sequence[str],
    microbatches: int,
    rows: int,
    *,
    recomputes: bool = False,
) -> Callable[[int], object]:
    """Build the step of a deep network, which takes its number.

    Args:
        order: of each stage's work.
        devices: one for each stage.
        microbatches: how many go through the stages.
        rows: examples of each; their activations are [rows, WIDTH] in each layer, and large.
        recomputes: whether backward passes compute activations again.
    """

    def build() -> keras.Model:
        x = inputs = keras.Input((_NARROW,))
        for _ in range(LAYERS * len(devices)):
            x = keras.layers.Dense(WIDTH, activation="tanh")(x)
        return keras.Model(inputs, keras.layers.Dense(_NARROW)(x))

    replica.forget_names()
    functions: dict[str, Callable[..., Any]] = {
        "build_model": build,
        "compile_model": lambda model: model.compile(keras.optimizers.SGD(1e-3), "mse"),
    }
    module = user.Module(pathlib.Path(__file__), functions)
    batch = rows * microbatches
    x = np.random.default_rng(0).normal(size=(batch, _NARROW)).astype(np.float32)
    division = batch_division.BatchSharding(batch, ranks=1, local_ranks=(0,) * len(devices))
    examples = arrays.ArraySource((x, x, None), division, None)
    bare = skeleton.build(module, 0)
    mesh = shape.MeshShape(stage=len(devices), generation=next(_generations))
    divided = split_partition.divide(
        recording.record(bare), mesh, microbatches, order, recomputes=recomputes
    )
    places = dict(enumerate(devices))
    step = pipeline_steps.PipelineTrainStep(
        module, ranks.build(module, bare, divided, places, examples), examples.spec, batch
    )
    (first,) = examples.epoch(0, 0)
    return lambda number: step(number, first, frozenset())


def in_flight(devices: Sequence[str], microbatches: int, rows: int) -> tuple[float, float]:
    """How many microbatches a stage holds on average at most: under 1F1B, and under GPipe.

    What a microbatch takes is told by how GPipe grows with their number, and what everything else
    takes by what remains.
    """
    few = max(1, microbatches // 4)
    small = peak(schedule.gpipe, devices, few, rows)
    large = peak(schedule.gpipe, devices, microbatches, rows)
    bytes_of_microbatch = (large - small) / (microbatches - few)
    fixed_bytes = small - few * bytes_of_microbatch
    bounded = peak(schedule.one_forward_one_backward, devices, microbatches, rows)
    return (bounded - fixed_bytes) / bytes_of_microbatch, (
        large - fixed_bytes
    ) / bytes_of_microbatch


def main(stages: int, microbatches: int, rows: int) -> None:
    """Measure, and report the figures."""
    machine.prepare(stages, alone=True)
    names = [f"/device:CPU:{number}" for number in range(stages)]
    bounded, unbounded = in_flight(names, microbatches, rows)
    events.write("held", bounded=bounded, unbounded=unbounded)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
