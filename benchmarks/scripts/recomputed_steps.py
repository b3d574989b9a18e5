"""Steps with and without `mesh.recompute`: `recomputed_steps.py STAGES MICROBATCHES ROWS STEPS`.

Stages are devices of this process, in which both kinds of steps alternate. Then TensorFlow's
profiler tells the most that operations of a step of each kind asked for.
"""

import functools
import sys
import time

from benchmarks.scripts import activations, events, requested
from tfparallel_trainer.comms import devices
from tfparallel_trainer.engines.split.pipeline import schedule


def main(stages: int, microbatches: int, rows: int, steps: int) -> None:
    """Measure, and report the figures."""
    devices.prepare(stages, alone=True)
    names = [f"/device:CPU:{number}" for number in range(stages)]
    order = schedule.one_forward_one_backward
    kinds = {
        recomputes: activations.build_step(order, names, microbatches, rows, recomputes=recomputes)
        for recomputes in (False, True)
    }
    for step in kinds.values():
        step(0)
    for number in range(1, steps + 1):
        for recomputes, step in kinds.items():
            begin = time.perf_counter()
            step(number)
            events.write("step", recomputes=recomputes, seconds=time.perf_counter() - begin)
    for recomputes, step in kinds.items():
        most = requested.most(functools.partial(step, steps + 1))
        events.write("peak", recomputes=recomputes, bytes=most)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
