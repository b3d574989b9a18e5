"""A job with a mesh of stages: whole processes, as the operator starts them."""

import pathlib
from typing import Any

import pytest

from testing import paths
from testing.trainer import reference
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import environment, exits

STEPS = 8
BATCH = 15
SEED = 5
JOB: dict[str, Any] = {
    "steps": STEPS,
    "globalBatchSize": BATCH,
    "seed": SEED,
    "strategy": "ModelSplit",
}

LONG = pytest.mark.long
CASES = [  # model, processes, devices of each, mesh
    pytest.param("mlp", 1, 2, {"stage": 2, "microbatches": 4}, id="mlp-1x2", marks=LONG),
    pytest.param("mlp", 2, 1, {"data": 2}, id="mlp-2x1-data", marks=LONG),
    pytest.param("mlp", 2, 1, {"data": 2, "shardOptimizer": True}, id="mlp-2x1-state"),
    pytest.param("mlp", 2, 2, {"data": 4, "shardOptimizer": True}, id="mlp-2x2-state", marks=LONG),
    pytest.param(
        "mlp",
        2,
        2,
        {"data": 2, "stage": 2, "shardOptimizer": True},
        id="mlp-2x2-stages-state",
        marks=LONG,
    ),
    pytest.param("mlp", 2, 1, {"stage": 2, "microbatches": 4}, id="mlp-2x1"),
    pytest.param(
        "tokens",
        2,
        2,
        {"data": 2, "stage": 2, "microbatches": 2, "schedule": "GPipe"},
        id="tokens-2x2",
    ),
    pytest.param("windows", 2, 1, {"stage": 2, "microbatches": 2}, id="windows-2x1"),
    pytest.param("mlp", 4, 1, {"stage": 2, "tensor": 2, "microbatches": 2}, id="mlp-4x1"),
    # The microbatches of a rank's loop are not those of its neighbour's.
    pytest.param("mlp", 3, 1, {"stage": 3, "microbatches": BATCH}, id="mlp-3x1-loops"),
    pytest.param("tokens", 2, 2, {"stage": 4, "microbatches": BATCH}, id="tokens-2x2-loops"),
]


@pytest.mark.parametrize(("name", "processes", "devices", "mesh"), CASES)
def test_losses_equal_one_process(
    name: str, processes: int, devices: int, mesh: dict[str, object], runs: trainings.Runs
) -> None:
    run = runs.finish(
        f"{name}.py",
        **JOB,
        processes=processes,
        devices=devices,
        mesh=mesh,
        step_log=True,
        new=name == "mlp" and (processes, mesh.get("stage")) == (2, 2),
    )
    with reference.floatx():
        _, losses = reference.train(reference.load(name), STEPS, BATCH, SEED)
    assert run.losses() == pytest.approx(losses, rel=1e-9)


def test_a_module_may_enable_determinism(runs: trainings.Runs, tmp_path: pathlib.Path) -> None:
    """TensorFlow then refuses to read its clock, by which stages are timed."""
    module = (paths.TRAINER_MODELS / "mlp.py").read_text()
    enabled = "import tensorflow as tf\n\ntf.config.experimental.enable_op_determinism()\n"
    (tmp_path / "deterministic.py").write_text(module + enabled)
    mesh = {"data": 2, "stage": 2, "microbatches": 2}
    job = {**JOB, "source": tmp_path, "devices": 4, "step_log": True}
    run = runs.finish("deterministic.py", **job, mesh=mesh)
    with reference.floatx():
        _, losses = reference.train(reference.load("mlp"), STEPS, BATCH, SEED)
    assert run.losses() == pytest.approx(losses, rel=1e-9)


@pytest.mark.parametrize(
    ("mesh", "sentence"),
    [
        ({"stage": 2, "tensor": 2}, "there are 2 devices: change the axes"),
        ({"stage": 2, "microbatches": 16}, "trainer.globalBatchSize is 15, and mesh.data is 1"),
        (
            {"stage": -1, "auto": False, "microbatches": 2, "tensor": 4},
            "2 devices are not divisible",
        ),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(
    mesh: dict[str, object], sentence: str, runs: trainings.Runs
) -> None:
    [process] = runs.end("mlp.py", **JOB, devices=2, mesh=mesh).ended
    assert process.code == exits.Exit.BAD_CONFIGURATION, process
    assert sentence in process.output + process.errors


def test_results_that_could_not_meet_are_refused_before_training(runs: trainings.Runs) -> None:
    # No checkpoint, and so no claim: each pod has an output directory of its own.
    started = runs.environments("mlp.py", **JOB, processes=2, mesh={"stage": 2})
    for number, variables in enumerate(started):
        variables[environment.OUTPUT_DIR] += f"-{number}"
    with runs.group(started) as group:
        chief, *_ = group.wait()
    assert chief.code == exits.Exit.BAD_CONFIGURATION, chief
    assert "give trainer.checkpoint.claim a claim that all of them share" in chief.errors
    assert "] step " not in chief.output
