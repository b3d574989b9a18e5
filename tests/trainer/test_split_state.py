"""State of divided models with whole processes: under another mesh, after a kill, as one file."""

import pathlib
from collections.abc import Mapping
from types import MappingProxyType

import keras
import numpy as np
import pytest

from testing import repeats
from testing.trainer import launch, reference, saves
from testing.trainer import runs as trainings
from tfparallel_trainer.checkpoint import files, store
from tfparallel_trainer.contract import exits, outputs

pytestmark = [
    pytest.mark.usefixtures("runs"),
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),  # within Keras
]

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


def run(folder: pathlib.Path, module: str, steps: int, link: Link) -> list[launch.Ended]:
    strategy, processes, devices, mesh = link
    spec: dict[str, object] = {
        "module": f"{module}.py",
        "steps": steps,
        "globalBatchSize": BATCH,
        "seed": SEED,
        "checkpoint": {"claim": "c", "everySteps": EACH, "keep": 2},
    }
    environments = launch.environments(
        folder,
        reference.MODELS,
        spec,
        processes=processes,
        devices=devices,
        strategy=strategy,
        mesh=mesh,
    )
    with trainings.Runs(folder).group(environments) as group:
        return group.wait(LIMIT)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", repeats.some(CHAINS, ["mlp"]))
def test_a_run_goes_on_under_other_meshes_and_strategies(name: str, tmp_path: pathlib.Path) -> None:
    chain = CHAINS[name]
    for number, link in enumerate(chain, 1):
        strategy, processes, *_ = link
        ended = run(tmp_path, name, EACH * number, link)
        assert [one.code for one in ended] == [exits.Exit.DONE] * processes, (link, ended)
        if number > 1:
            assert f"resuming after step {EACH * (number - 1)} " in ended[0].output
        parts = list((tmp_path / "output/checkpoints" / store.name(EACH * number)).glob("*.bin"))
        assert len(parts) == (processes if strategy == "ModelSplit" else 1)
    steps = EACH * len(chain)
    with reference.floatx():
        module = reference.load(name)
        weights, _ = reference.train(module, steps, BATCH, SEED)
        plain = module.build_model()
        module.compile_model(plain)
        plain.set_weights(weights)
        loaded = keras.saving.load_model(tmp_path / "output" / outputs.MODEL)
        for found, wanted in zip(loaded.get_weights(), weights, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-10)
        assert loaded.optimizer.iterations.value.numpy() == steps
        x, y, *rest = module.training_data()
        numbers, wanted = (
            one.evaluate(x, y, sample_weight=next(iter(rest), None), verbose=0, return_dict=True)
            for one in (loaded, plain)
        )
    assert numbers == pytest.approx(wanted, rel=1e-9)


NEVER: Mapping[str, str] = MappingProxyType({})


@pytest.mark.timeout(1200)
def test_killed_during_a_save_it_goes_on_from_the_one_before(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    (tmp_path / "model.py").write_text(saves.MODEL)

    trainer: dict[str, object] = {
        "steps": 6,
        "globalBatchSize": 4,
        "checkpoint": {"claim": "c", "everySteps": 1, "keep": 2},
    }

    def train(name: str, victim: int = 0, ends: Mapping[str, str] = NEVER) -> list[launch.Ended]:
        folder = tmp_path / name
        environments = launch.environments(
            folder, tmp_path, trainer, processes=2, strategy="ModelSplit", mesh=STAGES_OF_TWO
        )
        environments[victim].update(ends)
        with trainings.Runs(folder).group(environments) as group:
            return group.wait(LIMIT)

    checkpoints = tmp_path / "killed/output/checkpoints"
    cases = (
        (1, saves.half(1, parts=2)),
        (0, saves.half(0, parts=2)),
        (1, saves.Moment("open", saves.listing(1))),
        (0, saves.Moment("open", saves.INDEX)),
    )
    for step, (victim, moment) in enumerate(cases, 2):
        ended = train("killed", victim, moment.of_step(step))
        assert ended[victim].code == moment.code, ended
        assert ended[1 - victim].code == exits.Exit.PEER_LOST, ended
        newest = store.checkpoints(checkpoints)[-1]
        assert newest.name == store.name(step - 1)
        for _ in files.read(newest, files.read_index(newest)):
            pass
    for name in ("killed", "whole"):
        ended = train(name)
        assert [one.code for one in ended] == [exits.Exit.DONE] * 2, ended
    whole = tmp_path / "whole/output/checkpoints" / store.name(6)
    wanted = dict(files.read(whole, files.read_index(whole)))
    last = checkpoints / store.name(6)
    found = dict(files.read(last, files.read_index(last)))
    assert found.keys() == wanted.keys()
    for key, array in wanted.items():
        np.testing.assert_array_equal(found[key], array)
    assert not saves.drafts(checkpoints)
