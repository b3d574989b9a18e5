"""How long executions are where the job does not say it."""

import math
from typing import Any

import pytest
import tensorflow as tf

from tfparallel_trainer.loop import execution_length

SMALL = 1024.0


def after_reports(
    steps_per_execution: int | None = None, size: float = SMALL
) -> execution_length.ExecutionLength:
    """All processes have reported after step 500."""
    length = execution_length.ExecutionLength(steps_per_execution, size)
    length.reported(500)
    return length


def test_short_steps_of_a_long_run_share_calls() -> None:
    assert after_reports().most == 1
    assert after_reports().choose(600, 2600) == execution_length.CHOSEN_STEPS


@pytest.mark.parametrize(
    ("step", "total"),
    [(599, 10_000), (600, 2599), (600, None)],
    ids=["long steps", "short run", "run of unknown length"],
)
def test_other_steps_stay_single(step: int, total: int | None) -> None:
    assert after_reports().choose(step, total) == 1


def test_steps_before_the_first_report_do_not_count() -> None:
    length = execution_length.ExecutionLength(None, SMALL)
    assert length.choose(600, 10_000) == 1


@pytest.mark.parametrize("steps", [1, 4])
def test_the_job_decides_if_it_says_so(steps: int) -> None:
    length = after_reports(steps)
    assert length.most == steps
    assert length.choose(600, 10_000) == steps


@pytest.mark.parametrize(
    ("size", "steps"), [(0.0, 16), (2.0**20, 16), (2.0**22, 4), (2.0**25, 1), (math.inf, 1)]
)
def test_batches_of_an_execution_fit_in_little_memory(size: float, steps: int) -> None:
    assert after_reports(size=size).choose(600, 10_000) == steps


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        ((tf.TensorSpec((None, 3)), tf.TensorSpec((None,), tf.int64), None), 4 * (12 + 8)),
        ((tf.TensorSpec((None, None)), None, None), math.inf),
        ((tf.TensorSpec((None, 1), tf.string), None, None), math.inf),
    ],
)
def test_bytes_of_a_batch_follow_from_its_specification(spec: Any, size: float) -> None:
    assert execution_length.count_bytes(spec, 4) == size
