"""The contract between operator and trainer."""

import math

import pydantic
import pytest

from tfparallel_trainer.contract import exits, job_file, progress


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.6, "1m"), (75, "1m15s"), (3725, "1h2m"), (90_061, "1d1h"), (-3, "0s")],
)
def test_durations_have_their_two_largest_units(seconds: float, text: str) -> None:
    assert progress.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123456789, "0.123457"), (1e-9, "1e-09"), (math.nan, "NaN"), (-math.inf, "-Infinity")],
)
def test_numbers_are_written_as_the_api_conventions_ask(value: float, text: str) -> None:
    assert progress.format_number(value) == text


def test_every_exit_code_has_a_meaning_and_lies_clear_of_shells_and_signals() -> None:
    for code in exits.Exit:
        assert code.meaning
        assert code == 0 or 64 <= code <= 113
    assert exits.describe(137) == "ended by signal 9"
    assert exits.describe(192) == "ended by signal 64"
    for other in (1, 128, 193, 255):
        assert exits.describe(other) == "the command failed"


@pytest.mark.parametrize(
    ("mesh", "devices", "degrees"),
    [
        (job_file.Mesh(data=2, tensor=2), 4, [2, 1, 1, 2]),
        (job_file.Mesh(stage=-1, spatial=3), 6, [1, 2, 3, 1]),
        (job_file.Mesh(data=-1), 1, [1, 1, 1, 1]),
    ],
)
def test_a_mesh_spans_all_devices(mesh: job_file.Mesh, devices: int, degrees: list[int]) -> None:
    full = mesh.for_devices(devices)
    assert list(full.axes.values()) == degrees
    assert math.prod(degrees) == devices
    assert full.for_devices(devices) == full


@pytest.mark.parametrize(
    ("mesh", "sentence"),
    [
        (job_file.Mesh(data=2, tensor=3), "= 6, and there are 4 devices: change the axes"),
        (job_file.Mesh(data=-1, tensor=3), "4 devices are not divisible by 3: change the axes"),
        (job_file.Mesh(auto=True), "the planner gives the axes"),
    ],
)
def test_a_mesh_that_does_not_fit_says_why(mesh: job_file.Mesh, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        mesh.for_devices(4)


def test_a_batch_divides_into_microbatches_without_rest() -> None:
    job_file.Mesh(data=3).check_batch(4)
    job_file.Mesh(data=3, microbatches=2).check_batch(12)
    for mesh, size in ((job_file.Mesh(data=3), 2), (job_file.Mesh(data=3, microbatches=2), 10)):
        with pytest.raises(ValueError, match="is not divisible by"):
            mesh.check_batch(size)


@pytest.mark.parametrize(
    ("strategy", "mesh", "sentence"),
    [
        ("ModelSplit", None, "mesh is not given and strategy is 'ModelSplit'"),
        ("Mirrored", job_file.Mesh(data=2), "mesh is given and strategy is 'Mirrored'"),
    ],
)
def test_a_job_file_has_a_mesh_with_its_strategy_alone(
    strategy: str, mesh: job_file.Mesh | None, sentence: str
) -> None:
    trainer = job_file.TrainerSpec(epochs=1)
    with pytest.raises(pydantic.ValidationError, match=sentence):
        job_file.JobFile(name="job", strategy=strategy, trainer=trainer, mesh=mesh)
