"""State of divided models with whole processes: under another mesh."""

import re

import keras
import pytest

from testing import repeats
from testing.trainer import reference, weights
from testing.trainer import runs as trainings
from tfparallel_trainer.checkpoint import entries
from tfparallel_trainer.contract import outputs

pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # within Keras

BATCH = 15
SEED = 5
EACH = 3
LIMIT = 240.0

Mesh = dict[str, object]

STAGES: Mesh = {"stage": 2, "microbatches": 3}
RECOMPUTED: Mesh = {**STAGES, "recompute": True}
Link = tuple[str, int, int, Mesh | None]
"""Strategy, processes, devices of each, mesh."""

CHAINS: dict[str, list[Link]] = {
    "mlp": [
        ("ModelSplit", 1, 2, STAGES),
        ("ModelSplit", 2, 2, {"stage": 2, "tensor": 2, "microbatches": 2}),
        ("MultiWorkerMirrored", 2, 1, None),
        ("ModelSplit", 2, 2, {"data": 2, "stage": 2, "schedule": "GPipe"}),
    ],
    "mlp, longer": [
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
    "blocks": [
        ("ModelSplit", 2, 1, RECOMPUTED),
        ("ModelSplit", 2, 1, {"data": 2, "shardOptimizer": True, "recompute": True}),
    ],
}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", repeats.some(CHAINS, ["mlp"]))
def test_a_run_goes_on_under_other_meshes_and_strategies(name: str, runs: trainings.Runs) -> None:
    chain, module_name = CHAINS[name], name.partition(",")[0]
    for number, (strategy, processes, devices, mesh) in enumerate(chain, 1):
        run = runs.finish(
            f"{module_name}.py",
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
        if mesh is not None and "recompute" in mesh:
            [counts] = re.findall("activations of (.*) segments again", run.ended[0].output)
            assert all(int(count) > 1 for count in counts.split(" + "))
        parts = list((run.output / outputs.CHECKPOINTS / entries.name(EACH * number)).glob("*.bin"))
        assert len(parts) == (processes if strategy == "ModelSplit" else 1)
    steps = EACH * len(chain)
    with reference.floatx():
        module = reference.load(module_name)
        expected, _ = reference.train(module, steps, BATCH, SEED)
        plain = module.build_model()
        module.compile_model(plain)
        plain.set_weights(expected)
        loaded = keras.saving.load_model(run.output / outputs.MODEL)
        assert weights.difference(loaded.get_weights(), expected) <= weights.TOLERANCE
        assert loaded.optimizer.iterations.value.numpy() == steps
        x, y, *others = module.training_data()
        metrics, expected_metrics = (
            model.evaluate(
                x, y, sample_weight=next(iter(others), None), verbose=0, return_dict=True
            )
            for model in (loaded, plain)
        )
    assert metrics == pytest.approx(expected_metrics, rel=1e-9)
