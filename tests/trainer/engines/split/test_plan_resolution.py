"""A run divides its model as the planner says, and says why; or why it cannot."""

import dataclasses
import pathlib
import resource
from collections.abc import Iterator
from typing import Any

import keras
import pytest

from testing.trainer import planned_models, reference, report_receiver, split_models
from testing.trainer import runs as trainings
from tfparallel_trainer import errors
from tfparallel_trainer.comms import agreement
from tfparallel_trainer.contract import environment, exits, gpu_types, job_file, progress
from tfparallel_trainer.engines.split import placement_report, plan_resolution
from tfparallel_trainer.engines.split.model import graph, recording
from tfparallel_trainer.engines.split.planning import hardware

pytestmark = split_models.MARKS

AUTO = job_file.Mesh(auto=True)
ADAM = keras.optimizers.Adam()


def perceptron() -> graph.Graph:
    return recording.record(split_models.bare(planned_models.perceptron))


def test_a_run_with_auto_equals_one_process_and_reports_its_choice(runs: trainings.Runs) -> None:
    steps, batch, seed = 8, 15, 5
    run = runs.finish(
        "mlp.py",
        steps=steps,
        globalBatchSize=batch,
        seed=seed,
        processes=2,
        strategy="ModelSplit",
        mesh={"auto": True},
        step_log=True,
    )
    with reference.floatx():
        _, losses = reference.train(reference.load("mlp"), steps, batch, seed)
    assert run.losses() == pytest.approx(losses, rel=1e-9)
    chief = run.ended[0]
    assert "the planner's choice: Stage" in chief.output
    assert "The next best (" in chief.output


WIDE = """
import keras, resource
import numpy as np

[held] = [int(x.split()[1]) for x in open("/proc/self/status") if x.startswith("VmData")]
resource.setrlimit(resource.RLIMIT_DATA, (held * 1024 + 2**30, -1))

def build_model():
    return keras.Sequential([keras.Input((8,)), *(keras.layers.Dense(30_000) for _ in range(3))])

def compile_model(model):
    model.compile(keras.optimizers.Adam(), "mse")

def training_data():
    return np.zeros((16, 8)), np.zeros((16, 1))
"""
"""Weights of 7 GB in a process that may have one."""


def test_a_run_that_fits_nowhere_says_what_is_lacking(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    (tmp_path / "wide.py").write_text(WIDE)
    run = runs.end(
        "wide.py",
        source=tmp_path,
        steps=1,
        globalBatchSize=16,
        devices=2,
        strategy="ModelSplit",
        mesh={"auto": True},
    )
    [process] = run.ended
    assert process.code == exits.Exit.BAD_CONFIGURATION, process
    message = process.output + process.errors
    assert "The model does not fit 2 devices" in message
    assert "GiB too much: parameters" in message


def test_what_is_asked_for_is_kept_and_the_rest_is_chosen() -> None:
    model, cluster = perceptron(), hardware.DeviceCluster(processes=2)
    asked = job_file.Mesh(stage=2, microbatches=3, schedule=job_file.PipelineSchedule.GPIPE)
    kept = plan_resolution.resolve(model, asked, 32, cluster, ADAM)
    assert kept.mesh == asked
    assert len(kept.ends) == 1
    chosen = plan_resolution.resolve(model, AUTO, 32, cluster, ADAM)
    assert chosen.plan is not None
    assert not chosen.mesh.auto
    assert chosen.mesh.for_devices(2) == chosen.mesh
    reasons = placement_report.reasons(chosen.plan)
    assert any("The next best" in reason for reason in reasons)
    cut = plan_resolution.resolve(
        model, job_file.Mesh(stage=2, cuts=("dense_1",)), 32, cluster, ADAM
    )
    assert cut.plan is None


def test_replicas_that_share_the_optimizers_state_hold_a_part_of_its_slots() -> None:
    model, cluster = perceptron(), hardware.DeviceCluster(processes=4)
    unshared = plan_resolution.resolve(model, job_file.Mesh(data=4), 32, cluster, ADAM)
    asked = job_file.Mesh(data=4, shard_optimizer=True)
    shared = plan_resolution.resolve(model, asked, 32, cluster, ADAM)
    assert shared.mesh == asked
    assert unshared.plan is not None
    assert shared.plan is not None
    [before], [after] = unshared.plan.stages, shared.plan.stages
    fixed = 16  # bytes of the step and the learning rate, which every rank holds
    assert after.holds.slots == fixed + (before.holds.slots - fixed) / 4
    assert after.holds.parameters == before.holds.parameters
    assert after.holds.peak < before.holds.peak
    chosen = plan_resolution.resolve(
        model, job_file.Mesh(auto=True, shard_optimizer=True), 32, cluster, ADAM
    )
    assert chosen.mesh.shard_optimizer == (chosen.mesh.data > 1)


def test_a_limit_of_memory_divides_the_model_or_says_what_is_lacking() -> None:
    model, cluster = perceptron(), hardware.DeviceCluster(processes=4)
    whole = plan_resolution.resolve(model, job_file.Mesh(data=4), 32, cluster, ADAM).plan
    assert whole is not None
    peak = whole.stages[0].holds.peak

    def limited(memory: int) -> plan_resolution.ResolvedPlan:
        device = hardware.Device(memory=memory)
        return plan_resolution.resolve(
            model, AUTO, 32, dataclasses.replace(cluster, device=device), ADAM
        )

    tight = limited(peak * 6 // 10)
    assert tight.mesh.data < 4
    with pytest.raises(errors.BadConfigurationError, match=r"a device of stage .* too much"):
        limited(peak // 100)


def test_a_mesh_that_the_job_gives_is_kept_although_it_does_not_fit() -> None:
    model, cluster = perceptron(), hardware.DeviceCluster(processes=4)
    asked = job_file.Mesh(data=4)

    def limited(memory: int | None) -> plan_resolution.ResolvedPlan:
        device = hardware.Device(memory=memory)
        return plan_resolution.resolve(
            model, asked, 32, dataclasses.replace(cluster, device=device), ADAM
        )

    unlimited = limited(None)
    assert (unlimited.memory, unlimited.mesh) == (None, asked)
    assert unlimited.plan is not None
    peak = unlimited.plan.stages[0].holds.peak
    enough = limited(peak).memory
    assert enough is not None
    assert (enough.peak_bytes, enough.device_bytes, enough.changes) == (peak, peak, ())
    assert not enough.is_exceeded
    tight = limited(peak - 1)
    assert (tight.mesh, tight.ends) == (asked, unlimited.ends)
    assert tight.plan is not None
    assert tight.plan.reasons[0].startswith("Stage 0 sets the pace")
    assert tight.memory is not None
    assert tight.memory.is_exceeded
    assert tight.memory.changes[0].setting is progress.ChangedSetting.SHARD_OPTIMIZER
    cut = job_file.Mesh(stage=2, data=2, cuts=("dense_1",))
    assert plan_resolution.resolve(model, cut, 32, cluster, ADAM).memory is None


LARGE = """
import keras
import numpy as np

from tfparallel_trainer.engines.split import plan_resolution

plan_resolution.device_memory = lambda count: 1_500_000

def build_model():
    return keras.Sequential([keras.Input((8,)), *(keras.layers.Dense(200) for _ in range(3))])

def compile_model(model):
    model.compile(keras.optimizers.Adam(), "mse")

def training_data():
    return np.zeros((32, 8)), np.zeros((32, 200))
"""
"""Weights of 330 kB, with gradients, slots and the update five times as much. Devices have less."""


def test_a_run_that_is_not_expected_to_fit_says_so_before_its_first_step(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    (tmp_path / "model.py").write_text(LARGE)
    with report_receiver.receiving() as server:
        run = runs.finish(
            "model.py",
            source=tmp_path,
            steps=2,
            globalBatchSize=16,
            processes=2,
            strategy="ModelSplit",
            mesh={"data": 2},
            variables={environment.PROGRESS_URL: server.url},
        )
    sentence = (
        "warning: the model does not fit its devices, by the planner's estimate: one of stage 0"
    )
    assert sentence in run.chief.output
    assert "The model fits with mesh.shardOptimizer, " in run.chief.output
    (_, first), *_, (_, last) = server.got
    assert first["beforeFirstStep"]
    assert first["placement"]["memory"]["deviceBytes"] == 1_500_000
    assert first["placement"]["memory"]["changes"][0] == {"setting": "ShardOptimizer"}
    assert "beforeFirstStep" not in last
    assert last["step"] == 2
    assert last["placement"]["memory"] == first["placement"]["memory"]


def test_an_optimizer_that_cannot_train_parts_leaves_tensor_out() -> None:
    cluster = hardware.DeviceCluster(processes=4, device=hardware.Device(memory=2**62))
    lamb = keras.optimizers.Lamb()
    assert plan_resolution.resolve(perceptron(), AUTO, 32, cluster, lamb).mesh.tensor == 1
    with pytest.raises(errors.UserCodeError, match="The optimizer Lamb takes the norms"):
        plan_resolution.resolve(perceptron(), job_file.Mesh(tensor=4), 32, cluster, lamb)


def test_the_least_memory_counts_and_plans_are_compared() -> None:
    no_types = [len(gpu_types.DEVICE_TYPES)] * 3
    answers: list[list[int]] = [[7, 5, 9], no_types, [(1 << 62) - 1] * 3, no_types]
    together = agreement.Peers(
        me=0, names=("chief-0", "worker-0", "worker-1"), gather=_gatherer(answers)
    )
    assert plan_resolution.devices_of(together, 2).device.memory == 5
    assert plan_resolution.devices_of(together, 2).device.memory is None
    planned_mesh = plan_resolution.resolve(
        perceptron(), job_file.Mesh(stage=2), 32, hardware.DeviceCluster(processes=2)
    )
    plan_resolution.compare(planned_mesh, agreement.Peers())
    with pytest.raises(errors.BadConfigurationError, match="worker-0 divides the model otherwise"):
        plan_resolution.compare(
            planned_mesh, dataclasses.replace(together, gather=lambda number: [number, 1, number])
        )


def test_gpus_of_one_type_are_planned_with_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is here, so what CUDA calls one is given."""
    gpu = gpu_types.find_by_name("NVIDIA A100-SXM4-80GB")
    assert gpu is not None
    number = list(gpu_types.DEVICE_TYPES.values()).index(gpu)
    monkeypatch.setattr(plan_resolution, "gpu_type", lambda: gpu)
    for numbers, type_name in (([number, number], gpu.name), ([number, number + 1], None)):
        peers = agreement.Peers(
            me=0, names=("worker-0", "worker-1"), gather=_gatherer([[9, 7], numbers])
        )
        device = plan_resolution.devices_of(peers, 2).device
        assert (device.type_name, device.memory) == (type_name, 7)


def _gatherer(answers: list[list[int]]) -> Any:
    return lambda _: answers.pop(0)


@pytest.fixture
def limit() -> Iterator[int]:
    """A limit of this process's data, of which half a GiB is left."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    status = pathlib.Path("/proc/self/status").read_text()
    [data_kibibytes] = [
        int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData")
    ]
    resource.setrlimit(resource.RLIMIT_DATA, (data_kibibytes * 1024 + 2**29, before[1]))
    yield 2**29
    resource.setrlimit(resource.RLIMIT_DATA, before)


def test_devices_share_what_a_limit_leaves(limit: int) -> None:
    assert plan_resolution.device_memory(1) == pytest.approx(limit, rel=0.2)
    assert plan_resolution.device_memory(4) == pytest.approx(limit / 4, rel=0.2)
