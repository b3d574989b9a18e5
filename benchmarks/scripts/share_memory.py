"""How much memory the start takes besides the state of training: `share_memory.py WIDTH`.

The kernel tells the highest resident memory since it was asked to forget it.
"""

import pathlib
import sys
from collections.abc import Sequence

import keras
import numpy as np

import tfparallel_trainer
from benchmarks.scripts import events
from tfparallel_trainer.objective import replica, state

LAYERS = 12
_share = state.share


def main(width: int) -> None:
    """Train for a step, and report what is shared before it."""
    tfparallel_trainer.start()
    state.share = _measured
    model = keras.Sequential([keras.Input((4,))])
    for _ in range(LAYERS):
        model.add(keras.layers.Dense(width))
    model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), "mse")
    x = np.zeros((4, 4), np.float32)
    tfparallel_trainer.fit(model, x, np.zeros((4, width), np.float32), batch_size=4, verbose=0)


def _measured(replicas: Sequence[replica.Replica], numbers: Sequence[int]) -> list[int]:
    pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _kilobytes("VmRSS")
    shared = _share(replicas, numbers)
    more = 1024 * (_kilobytes("VmHWM") - before)
    size = sum(variable.value.numpy().nbytes for variable in replicas[0].state())
    events.write("shared", bytes=size, more=more)
    return shared


def _kilobytes(name: str) -> int:
    for line in pathlib.Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise RuntimeError(f"the kernel tells no {name}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
