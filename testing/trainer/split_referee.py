"""Steps of a divided model that are each compared with one process, on virtual devices."""

import functools
import itertools
import pathlib
from collections.abc import Callable
from typing import Any

from testing.trainer import cases, split_ranks
from testing.trainer import ranks as devices
from tfparallel_trainer import user
from tfparallel_trainer.checkpoint import shard
from tfparallel_trainer.comms import shape
from tfparallel_trainer.contract import verification
from tfparallel_trainer.engines.split.execution import captures, ranks
from tfparallel_trainer.engines.split.pipeline import schedule
from tfparallel_trainer.engines.split.referee import single_process, split_referee, step_trial
from tfparallel_trainer.engines.split.state import blueprint, persistence


def check(
    functions: dict[str, Callable[..., Any]],
    mesh: shape.MeshShape,
    microbatches: int = 1,
    order: schedule.Schedule = split_ranks.ONE,
    batch: int = cases.BATCH,
    steps: int = 2,
    after_step: Callable[[ranks.Ranks], None] = lambda _: None,
    *,
    shards_optimizer: bool = False,
) -> list[verification.Check]:
    """Train for some steps, and compare each with one process; `after_step` may change ranks.

    Raises:
        VerificationError: one of them differs.
    """
    module = user.Module(pathlib.Path(__file__), functions)
    local_ranks, examples, step = split_ranks.prepare_new(
        functions, mesh, microbatches, order, batch, shards_optimizer=shards_optimizer
    )
    captures.find(local_ranks, examples.spec)
    drawn = blueprint.draw(module, cases.SEED)
    state = shard.State(
        [persistence.share_of(drawn, rank) for rank in local_ranks.local], drawn.wholes
    )
    single = single_process.build(
        module,
        shape.MeshShape(generation=devices.generation()),
        devices.DEVICES[0],
        cases.SEED,
        examples.sample(),
    )
    step.referee = split_referee.SplitReferee(
        local_ranks,
        step_trial.Trials(local_ranks, step, state, examples.spec),
        functools.partial(single_process.judge, single, examples.spec, drawn.slots),
        always=True,
    )
    checks: list[verification.Check] = []
    batches = (part for epoch in range(steps) for part in examples.epoch(epoch, 0))
    for number, part in enumerate(itertools.islice(batches, steps)):
        check = step(number, part, frozenset()).check
        if check is not None:
            checks.append(check())
        after_step(local_ranks)
    return checks
