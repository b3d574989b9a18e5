"""State of divided models with whole processes: under another mesh, after a kill, as one file."""

import pathlib
from typing import Any

import keras
import pytest

from testing import repeats
from testing.trainer import reference, saves, weights
from testing.trainer import runs as trainings
from tfparallel_trainer.checkpoint import store
from tfparallel_trainer.contract import exits, outputs
from tfparallel_trainer.storage import folder as folders

pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # within Keras

BATCH = 15
SEED = 5
EACH = 3
LIMIT = 240.0
STAGES_OF_TWO: dict[str, object] = {"stage": 2, "microbatches": 2}

Mesh = dict[str, object]

STAGES: Mesh = {"stage": 2, "microbatches": 3}
Link = tuple[str, int, int, Mesh | None]
"""Strategy, processes, devices of each, mesh."""

CHAINS: dict[str, list[Link]] = {
    "mlp": [
        ("ModelSplit", 1, 2, STAGES),
        ("ModelSplit", 2, 2, {"data": 2, "stage": 2, "schedule": "GPipe"}),
        ("MultiWorkerMirrored", 2, 1, None),
        ("ModelSplit", 3, 1, {"stage": 3, "microbatches": 2}),
        ("Mirrored", 1, 1, None),
        ("ModelSplit", 2, 2, {"stage": 2, "tensor": 2, "microbatches": 2}),
        ("ModelSplit", 2, 1, STAGES),
    ],
    "cnn": [
        ("ModelSplit", 1, 4, {"spatial": 2, "tensor": 2}),
        ("Mirrored", 1, 1, None),
        ("ModelSplit", 2, 1, {"tensor": 2, "microbatches": 2}),
        ("ModelSplit", 1, 4, {"stage": 2, "spatial": 2}),
    ],
}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", repeats.some(CHAINS, ["mlp"]))
def test_a_run_goes_on_under_other_meshes_and_strategies(name: str, runs: trainings.Runs) -> None:
    chain = CHAINS[name]
    for number, (strategy, processes, devices, mesh) in enumerate(chain, 1):
        run = runs.finish(
            f"{name}.py",
            steps=EACH * number,
            globalBatchSize=BATCH,
            seed=SEED,
            checkpoint={"claim": "c", "everySteps": EACH, "keep": 2},
            strategy=strategy,
            processes=processes,
            devices=devices,
            mesh=mesh,
            limit=LIMIT,
        )
        if number > 1:
            assert f"resuming after step {EACH * (number - 1)} " in run.ended[0].output
        parts = list((run.output / outputs.CHECKPOINTS / store.name(EACH * number)).glob("*.bin"))
        assert len(parts) == (processes if strategy == "ModelSplit" else 1)
    steps = EACH * len(chain)
    with reference.floatx():
        module = reference.load(name)
        expected, _ = reference.train(module, steps, BATCH, SEED)
        plain = module.build_model()
        module.compile_model(plain)
        plain.set_weights(expected)
        loaded = keras.saving.load_model(run.output / outputs.MODEL)
        assert weights.difference(loaded.get_weights(), expected) <= weights.TOLERANCE
        assert loaded.optimizer.iterations.value.numpy() == steps
        x, y, *rest = module.training_data()
        metrics, expected_metrics = (
            one.evaluate(x, y, sample_weight=next(iter(rest), None), verbose=0, return_dict=True)
            for one in (loaded, plain)
        )
    assert metrics == pytest.approx(expected_metrics, rel=1e-9)


@pytest.mark.timeout(1200)
def test_killed_during_a_save_it_goes_on_from_the_one_before(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    (tmp_path / "model.py").write_text(saves.MODEL)
    job: dict[str, Any] = {
        "source": tmp_path,
        "steps": 6,
        "globalBatchSize": 4,
        "checkpoint": {"claim": "c", "everySteps": 1, "keep": 2},
        "processes": 2,
        "strategy": "ModelSplit",
        "mesh": STAGES_OF_TWO,
    }
    checkpoints = tmp_path / "killed" / "output" / outputs.CHECKPOINTS
    moments = (
        (1, saves.half(1, parts=2)),
        (0, saves.half(0, parts=2)),
        (1, saves.Moment("open", saves.listing(1))),
        (0, saves.Moment("open", saves.INDEX)),
    )
    for step, (victim, moment) in enumerate(moments, 2):
        environments = runs.environments("model.py", folder="killed", **job)
        environments[victim].update(moment.of_step(step))
        with runs.group(environments, logs="killed/logs") as group:
            processes = group.wait(LIMIT)
        assert processes[victim].code == moment.code, processes
        assert processes[1 - victim].code == exits.Exit.PEER_LOST, processes
        assert store.checkpoints(folders.Folder(checkpoints))[-1].name == store.name(step - 1)
        weights.checkpoint(checkpoints.parent)  # reads and verifies all of it
    killed, unbroken = (
        runs.finish("model.py", folder=folder, limit=LIMIT, **job)
        for folder in ("killed", "unbroken")
    )
    weights.assert_same_bits(killed.checkpoint(6), unbroken.checkpoint(6))
    assert not saves.drafts(checkpoints)
