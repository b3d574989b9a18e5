"""Steps of two processes with and without `mesh.shardOptimizer`: `shared_updates.py ROWS STEPS`.

Both models live in the same processes, whose steps alternate.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.models import planned
from benchmarks.scripts import events
from testing.trainer import cases, split_ranks
from tfparallel_trainer import tasks
from tfparallel_trainer.comms import shape

_WARM = 2
"""Steps of each that are not measured."""


def main(rows: int, steps: int) -> None:
    """Be one process of two; the first one reports its steps."""

    def train_all(processes: tasks.Cluster, names: Sequence[str]) -> Callable[[], object]:
        places = {processes.me: names[0]}
        functions: dict[str, Callable[..., Any]] = {
            "build_model": planned.build_model,
            "compile_model": planned.compile_model,
            "training_data": planned.training_data,
        }
        trained = {
            shards_optimizer: split_ranks.prepare(
                functions,
                shape.MeshShape(data=2, generation=int(shards_optimizer)),
                1,
                batch=rows,
                shards_optimizer=shards_optimizer,
                places=places,
            )
            for shards_optimizer in (False, True)
        }
        for number in range(_WARM + steps):
            for shards_optimizer, (_, examples, step) in trained.items():
                batch = next(iter(examples.epoch(number, 0)))
                begin = time.perf_counter()
                result = step(number, batch, frozenset())
                seconds = time.perf_counter() - begin
                if processes.is_chief and number >= _WARM:
                    events.write("step", shards=shards_optimizer, seconds=seconds, loss=result.loss)
        local_ranks, *_ = trained[True]
        return local_ranks.barrier

    cases.run_as_peer(train_all)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
