"""Random jobs train to the weights of Keras' own fit, or the trainer refuses them at the start."""

import dataclasses
from collections.abc import Iterable

import pytest

from testing.trainer.random_models import campaign, drawing, judging, outcomes, spec
from tfparallel_trainer.contract import job_file

SEED = 1
QUICK = (1, 2, 3, 8, 14, 16, 19, 26, 30, 35, 43, 301, 302)
"""Models with few layers, whose jobs have every strategy and every axis of a mesh."""


def failures(numbers: Iterable[int], verify: job_file.Verify) -> list[str]:
    """Return what failed; the campaign's seed and the number of a model repeat it."""
    ended = [outcome for model in campaign.run(SEED, numbers, 2, verify) for outcome in model]
    assert not all(outcome.ending is outcomes.Ending.INVALID for outcome in ended)
    return [f"seed {SEED}, {outcome}" for outcome in ended if outcome.ending.is_failure]


@pytest.mark.timeout(1200)
def test_fifty_random_jobs_are_equal_or_refused() -> None:
    assert len(QUICK) * drawing.LAYOUTS_PER_MODEL >= 50
    assert failures(QUICK, job_file.Verify.OFF) == []


def test_other_weights_are_a_failure() -> None:
    job = drawing.draw_jobs(SEED, 43)[0]
    scale = "1.0 + 0.1 * ('TF_CONFIG' in __import__('os').environ)"
    first = job.model.nodes[0]
    rescaling = spec.Construction("keras.layers.Rescaling", {"scale": scale})
    changed = spec.Node("changed", rescaling, first.inputs)
    nodes = (changed, dataclasses.replace(first, inputs=("changed",)), *job.model.nodes[1:])
    model = dataclasses.replace(job.model, nodes=nodes)
    wrong = spec.Job(model, spec.JobLayout("MultiWorkerMirrored"))
    assert judging.run_to_failure(wrong)[0] is outcomes.Ending.DIFFERENT


@pytest.mark.long
@pytest.mark.timeout(6 * 3600)
def test_two_thousand_random_jobs_are_equal_or_refused() -> None:
    assert failures(range(2000 // drawing.LAYOUTS_PER_MODEL), job_file.Verify.AUTO) == []
