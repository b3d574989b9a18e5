"""A job with a mesh of stages: whole processes, as the operator starts them."""

import pathlib

import pytest

from testing.trainer import launch, reference
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import environment, exits

STEPS = 8
BATCH = 15

CASES = [  # model, processes, devices of each, mesh
    pytest.param("mlp", 1, 2, {"stage": 2, "microbatches": 4}, id="mlp-1x2"),
    pytest.param("mlp", 2, 1, {"data": 2}, id="mlp-2x1-data"),
    pytest.param("mlp", 2, 1, {"stage": 2, "microbatches": 4}, id="mlp-2x1"),
    pytest.param(
        "tokens",
        2,
        2,
        {"data": 2, "stage": 2, "microbatches": 2, "schedule": "GPipe"},
        id="tokens-2x2",
    ),
    pytest.param("mlp", 4, 1, {"stage": 2, "tensor": 2, "microbatches": 2}, id="mlp-4x1"),
]


@pytest.mark.parametrize(("name", "processes", "devices", "mesh"), CASES)
def test_losses_equal_one_process(
    name: str,
    processes: int,
    devices: int,
    mesh: dict[str, object],
    tmp_path: pathlib.Path,
    runs: trainings.Runs,
) -> None:
    trainer = {"module": f"{name}.py", "steps": STEPS, "globalBatchSize": BATCH, "seed": 5}
    environments = launch.environments(
        tmp_path,
        reference.MODELS,
        trainer,
        processes=processes,
        devices=devices,
        strategy="ModelSplit",
        mesh=mesh,
        more={environment.STEP_LOG: "1"},
    )
    with runs.group(environments, new=processes == 2 and devices == 1) as group:
        with reference.floatx():
            _, losses = reference.train(reference.load(name), STEPS, BATCH, 5)
        ended = group.wait()
    assert [one.code for one in ended] == [exits.Exit.DONE] * processes, ended
    assert trainings.step_losses(tmp_path) == pytest.approx(losses, rel=1e-9)


@pytest.mark.parametrize(
    ("mesh", "sentence"),
    [
        ({"stage": 2, "tensor": 2}, "there are 2 devices: change the axes"),
        ({"stage": 2, "microbatches": 16}, "trainer.globalBatchSize is 15, and mesh.data is 1"),
        ({"stage": -1, "auto": False, "microbatches": 2, "tensor": 4}, "2 devices do not divide"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(
    mesh: dict[str, object], sentence: str, tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    trainer = {"module": "mlp.py", "steps": STEPS, "globalBatchSize": BATCH}
    environments = launch.environments(
        tmp_path, reference.MODELS, trainer, devices=2, strategy="ModelSplit", mesh=mesh
    )
    with runs.group(environments) as group:
        (ended,) = group.wait()
    assert ended.code == exits.Exit.BAD_CONFIGURATION, ended
    assert sentence in ended.output + ended.errors
