"""What is the state of one process: of Python, or of a variable that a callback or a layer sets.

Each case is trained by several processes, and has the weights that Keras' own fit gives in one.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import pytest

from testing.trainer import reference, weights
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import exits, outputs

EPOCHS, BATCH, SEED = 3, 4, 1
ASSIGNED: dict[str, Any] = {
    "epochs": EPOCHS,
    "globalBatchSize": BATCH,
    "seed": SEED,
    "checkpoint": {"claim": "c", "everySteps": 2},
}


@pytest.mark.parametrize(
    "case",
    ["unfreeze", "loss_weight", pytest.param("prune_mask", marks=pytest.mark.long)],
)
def test_processes_train_what_keras_fit_trains(case: str, runs: trainings.Runs) -> None:
    with reference.floatx():
        expected = reference.fit(reference.load(f"states/{case}"), EPOCHS, BATCH, SEED)
    run = runs.finish(
        f"states/{case}.py",
        processes=2,
        epochs=EPOCHS,
        globalBatchSize=BATCH,
        seed=SEED,
        checkpoint={"claim": "c", "everySteps": 2},
    )
    assert run.difference(expected) <= weights.TOLERANCE


def test_processes_assign_what_keras_assigns(runs: trainings.Runs) -> None:
    with reference.floatx():
        expected, _ = reference.train(reference.load("states/assigned"), 9, BATCH, SEED)
    run = runs.finish("states/assigned.py", processes=2, **ASSIGNED)
    assert run.difference(expected) <= weights.TOLERANCE


@pytest.mark.long
def test_a_worker_assigns_what_keras_assigns(runs: trainings.Runs) -> None:
    with reference.floatx():
        expected, _ = reference.train(reference.load("states/assigned"), 9, BATCH, SEED)
    run = runs.finish_servers("states/assigned.py", workers=1, **ASSIGNED)
    assert run.difference(expected) <= weights.TOLERANCE


@pytest.mark.long
def test_a_callback_may_predict_and_evaluate_with_servers(runs: trainings.Runs) -> None:
    with reference.floatx():
        expected = reference.fit(reference.load("states/predicting"), EPOCHS, BATCH, SEED)
    run = runs.finish_servers("states/predicting.py", workers=1, **ASSIGNED)
    assert run.difference(expected) <= weights.TOLERANCE


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "layout"),
    [
        ("prune_mask", {"processes": 2}),
        ("loss_weight", {"processes": 2}),
        ("loss_weight", {"devices": 2, "strategy": "Mirrored"}),
        ("loss_weight", {"strategy": "Mirrored"}),
    ],
)
def test_a_restart_has_what_callbacks_have_set(
    case: str, layout: dict[str, Any], runs: trainings.Runs
) -> None:
    with reference.floatx():
        expected = reference.fit(reference.load(f"states/{case}"), EPOCHS, BATCH, SEED)
    for attempt, epochs in enumerate((2, EPOCHS), 1):
        run = runs.finish(
            f"states/{case}.py",
            **layout,
            attempt=attempt,
            epochs=epochs,
            globalBatchSize=BATCH,
            seed=SEED,
            checkpoint={"claim": "c", "everySteps": 2},
        )
    assert "resuming after step 4" in run.chief.output
    assert run.difference(expected) <= weights.TOLERANCE


# Keras quantizes in a way that NumPy deprecates.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.long
def test_initial_weights_of_small_integers_are_everywhere(
    runs: trainings.Runs, tmp_path: pathlib.Path
) -> None:
    with reference.floatx():
        module = reference.load("states/qlora")
        keras.utils.set_random_seed(SEED + 1)
        module.build_model().save_weights(tmp_path / "base.weights.h5")
    trained = [
        runs.finish(
            "states/qlora.py",
            folder=str(processes),
            processes=processes,
            steps=4,
            globalBatchSize=BATCH,
            seed=SEED,
            initialWeights=str(tmp_path / "base.weights.h5"),
            checkpoint={"claim": "c", "everySteps": 4},
        )
        for processes in (1, 2)
    ]
    expected = weights.of_model(trained[0].checkpoint())
    assert any(array.dtype == "int8" for array in expected)
    assert trained[1].difference(expected) <= 1e-6


@pytest.mark.parametrize(
    ("layout", "attempts"),
    [
        ({"processes": 2}, (EPOCHS,)),
        pytest.param({"processes": 2}, (2, EPOCHS), marks=pytest.mark.long),
        pytest.param({"devices": 2}, (2, EPOCHS), marks=pytest.mark.long),
    ],
)
def test_stages_read_what_callbacks_write(
    layout: dict[str, Any], attempts: Sequence[int], runs: trainings.Runs
) -> None:
    """Callbacks run where the first stage is; the loss is where the last one is."""
    with reference.floatx():
        expected = reference.fit(reference.load("states/loss_alpha"), EPOCHS, BATCH, SEED)
    for attempt, epochs in enumerate(attempts, 1):
        run = runs.finish(
            "states/loss_alpha.py",
            **layout,
            attempt=attempt,
            strategy="ModelSplit",
            mesh={"stage": 2},
            epochs=epochs,
            globalBatchSize=BATCH,
            seed=SEED,
            checkpoint={"claim": "c", "everySteps": 2},
        )
    assert len(attempts) == 1 or "resuming after step 4" in run.chief.output
    trained = keras.saving.load_model(run.output / outputs.MODEL).get_weights()
    assert weights.difference(trained, expected) <= weights.TOLERANCE


@pytest.mark.long
@pytest.mark.parametrize("attempts", [(EPOCHS,), (2, EPOCHS)], ids=["once", "restarted"])
@pytest.mark.parametrize("case", ["loss_alpha", "loss_weight"])
def test_a_worker_reads_what_callbacks_write(
    case: str, attempts: Sequence[int], runs: trainings.Runs
) -> None:
    """Callbacks run on the chief; its check compares with a model that has variables of its own."""
    with reference.floatx():
        expected = reference.fit(reference.load(f"states/{case}"), EPOCHS, BATCH, SEED)
    for epochs in attempts:
        run = runs.finish_servers(
            f"states/{case}.py", workers=1, verify="Auto", **{**ASSIGNED, "epochs": epochs}
        )
    assert run.difference(expected) <= weights.TOLERANCE
    assert len(attempts) == 1 or "resuming after step 4" in run.chief.output


@pytest.mark.parametrize(
    "layout",
    [
        {"strategy": "MultiWorkerMirrored"},
        pytest.param({"strategy": "ModelSplit", "mesh": {"data": 2}}, marks=pytest.mark.long),
        pytest.param({"strategy": "Custom"}, marks=pytest.mark.long),
    ],
    ids=lambda layout: layout["strategy"],
)
def test_models_that_differ_between_processes_are_refused(
    layout: dict[str, Any], runs: trainings.Runs
) -> None:
    run = runs.end("states/differing.py", processes=2, steps=4, globalBatchSize=BATCH, **layout)
    assert run.codes == [exits.Exit.USER_ERROR] * 2, run.ended
    for ended in run.ended:
        assert "worker-0 and chief-0 differ in the layer lookup (StringLookup)" in ended.errors
        assert "sort what comes from a set" in ended.errors
