"""What the operator is told of a split model: where each stage is, in a bounded report."""

import pytest

from testing.trainer import split_graphs
from tfparallel_trainer import tasks
from tfparallel_trainer.comms import shape
from tfparallel_trainer.contract import job_file, limits, progress
from tfparallel_trainer.engines.split import placement_report
from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.pipeline import cutting


def chain(*names: str) -> graph.Graph:
    """A model whose layers follow each other."""
    return split_graphs.chain(names)


def place(mesh: shape.MeshShape, processes: int, kind: str = "CPU") -> placement_report.Place:
    members = tuple(tasks.Task("worker", index, f"host:{index}") for index in range(processes))
    return placement_report.Place(mesh, tasks.Cluster(members, 0), kind)


def test_each_stage_is_reported_with_its_devices_and_layers() -> None:
    mesh = job_file.Mesh(data=2, stage=2, microbatches=4)
    model_stages = cutting.cut(chain("conv", "pool", "dense", "dense#2"), [2])
    placement = placement_report.describe(
        mesh,
        place(shape.MeshShape(data=2, stage=2), 2, "GPU"),
        model_stages,
        [1000, 4000],
        [0.5, 0.123456789],
    )
    assert placement.mesh == mesh
    first, second = placement.stages
    assert first.devices == ("worker-0/GPU:0", "worker-1/GPU:0")
    assert second.devices == ("worker-0/GPU:1", "worker-1/GPU:1")
    assert (first.layers, first.layer_count, first.parameter_bytes) == ("conv to pool", 2, 1000)
    assert (second.layers, second.layer_count, second.parameter_bytes) == ("dense", 1, 4000)
    assert (first.busy_seconds, second.busy_seconds) == ("0.5", "0.123457")


def test_a_model_in_one_stage_is_reported_too() -> None:
    [whole] = placement_report.describe(
        job_file.Mesh(tensor=8),
        place(shape.MeshShape(tensor=8), 4),
        cutting.cut(chain("a"), []),
        [7],
    ).stages
    assert whole.device_count == 8
    assert whole.devices == ("worker-0/CPU:0", "worker-0/CPU:1", "worker-1/CPU:0", "worker-1/CPU:1")
    assert whole.busy_seconds is None


def test_a_stage_without_layers_has_none_to_name() -> None:
    model = split_graphs.chain(["mask"], kind=graph.NodeKind.MASK)
    [only] = placement_report.describe(
        job_file.Mesh(), place(shape.MeshShape(), 1), cutting.cut(model, []), [0]
    ).stages
    assert (only.layers, only.layer_count) == ("", 0)


@pytest.mark.parametrize("count", [31, 40])
def test_the_largest_report_is_taken(count: int) -> None:
    layer = "a" * 200
    model = chain(*(f"{layer}{number}{end}" for number in range(count) for end in "xy"))
    model_stages = cutting.cut(model, [2 * number for number in range(1, count)])
    members = tuple(tasks.Task("worker", 10**60 + index, "host") for index in range(count))
    mesh = shape.MeshShape(data=10, stage=count)
    where = placement_report.Place(mesh, tasks.Cluster(members, 0), "GPU")
    degrees = job_file.Mesh(data=10, stage=count, microbatches=4096)
    bytes_and_seconds = [2**62] * count, [1.23456e-300] * count
    placement = placement_report.describe(degrees, where, model_stages, *bytes_and_seconds)
    assert len(placement.stages) == min(count, limits.MAX_STAGES)
    assert len(placement.stages[0].layers) == limits.MAX_LAYERS_LETTERS
    report = progress.Report(
        step=limits.MAX_COUNT,
        total_steps=limits.MAX_COUNT,
        epoch=limits.MAX_COUNT,
        metrics={f"{'m' * 62}{number}": "9" * 32 for number in range(10, 74)},
        examples_per_second="9" * 32,
        eta="9" * 32,
        placement=placement,
    )
    body = report.model_dump_json(by_alias=True, exclude_none=True)
    assert progress.Report.model_validate_json(body) == report
    assert len(body.encode()) <= limits.MAX_BODY_BYTES


def test_odd_names_of_layers_are_shown_so_that_the_report_is_taken() -> None:
    model_stages = cutting.cut(chain("a\x1b[2J", "b" * 80, "\x00" * 253), [2])
    degrees = job_file.Mesh(stage=2, cuts=("\x00" * 253,))
    where = place(shape.MeshShape(stage=2), 2)
    placement = placement_report.describe(degrees, where, model_stages, [7, 2**80])
    assert placement.stages[0].layers == rf"a\x1b[2J to {'b' * 37}…"
    assert placement.stages[1].parameter_bytes == limits.MAX_COUNT
    report = progress.Report(step=1, placement=placement)
    assert progress.Report.model_validate_json(report.model_dump_json()) == report
