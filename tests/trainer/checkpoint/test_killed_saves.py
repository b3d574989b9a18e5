"""Processes killed in the middle of a save: a run resumes from the checkpoint before, whole."""

import dataclasses
import pathlib
from typing import Any

import pytest

from testing.trainer import runs as trainings
from testing.trainer import saves, weights
from tfparallel_trainer.contract import exits, outputs

LIMIT = 240.0
STEPS = 12


@dataclasses.dataclass(frozen=True)
class Kill:
    """The end of one process at a moment of a save."""

    moment: saves.Moment
    rank: int = 0
    draft: frozenset[str] | None = None
    """The files that the save leaves, where no other process writes at the same time."""


WHOLE = (
    Kill(saves.half(), draft=frozenset({saves.data()})),
    Kill(saves.Moment("open", saves.listing()), draft=frozenset({saves.data()})),
    Kill(saves.Moment("open", saves.INDEX), draft=frozenset({saves.data(), saves.listing()})),
    Kill(
        saves.Moment("os.rename"),
        draft=frozenset({saves.data(), saves.listing(), saves.INDEX}),
    ),
)
DIVIDED = (
    Kill(saves.half(1, parts=2), rank=1),
    Kill(saves.half(0, parts=2)),
    Kill(saves.Moment("open", saves.listing(1)), rank=1),
    Kill(saves.Moment("open", saves.INDEX)),
)
STAGES = {"mesh": {"stage": 2, "microbatches": 2}, "processes": 2}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("strategy", "layout", "kills"),
    [("Mirrored", {}, WHOLE), ("ModelSplit", STAGES, DIVIDED)],
    ids=["Mirrored", "ModelSplit"],
)
def test_a_killed_save_costs_no_more_than_its_step(
    strategy: str,
    layout: dict[str, Any],
    kills: tuple[Kill, ...],
    tmp_path: pathlib.Path,
    runs: trainings.Runs,
) -> None:
    (tmp_path / "model.py").write_text(saves.MODEL)
    job: dict[str, Any] = {
        "source": tmp_path,
        "steps": STEPS,
        "globalBatchSize": 4,
        "checkpoint": {"claim": "c", "everySteps": 1, "keep": 2},
        "strategy": strategy,
        **layout,
    }
    output = tmp_path / "killed" / "output"
    checkpoints = output / outputs.CHECKPOINTS
    newest = 0
    for kill in kills:
        environments = runs.environments("model.py", folder="killed", **job)
        # Two more first, so that something is there to be lost.
        environments[kill.rank].update(kill.moment.of_step(newest + 3))
        with runs.group(environments, logs="killed/logs") as group:
            ended = group.wait(LIMIT)
        for rank, process in enumerate(ended):
            expected = kill.moment.code if rank == kill.rank else exits.Exit.PEER_LOST
            assert process.code == expected, process
        if newest:
            assert f"resuming after step {newest} " in ended[0].output
        if kill.draft is not None:
            assert_draft(checkpoints, kill)
        kept = sorted(int(path.name[-10:]) for path in checkpoints.glob("step-*"))
        assert kept == [newest + 1, newest + 2]
        for step in kept:  # reads and verifies all of it
            assert len(weights.checkpoint(output, step)) == saves.VARIABLES
        newest += 2

    killed = runs.finish("model.py", folder="killed", limit=LIMIT, **job)
    unbroken = runs.finish("model.py", folder="unbroken", limit=LIMIT, **job)
    assert f"resuming after step {newest} " in killed.chief.output
    assert not saves.drafts(checkpoints)
    weights.assert_same_bits(killed.checkpoint(STEPS), unbroken.checkpoint(STEPS))


def assert_draft(checkpoints: pathlib.Path, kill: Kill) -> None:
    """What a save leaves that came to no end, its last file as far as it was written."""
    (draft,) = saves.drafts(checkpoints)
    assert frozenset(path.name for path in draft.iterdir()) == kill.draft
    written = (draft / saves.data()).stat().st_size
    limit = kill.moment.limit
    assert written == limit if limit else written > saves.BYTES
