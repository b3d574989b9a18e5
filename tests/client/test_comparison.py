"""The figures of a comparison, from logs that real runs have left, and from logs made by hand."""

import dataclasses
import io
import json
import os
import pathlib
import statistics
from collections.abc import Sequence

import pytest
from rich import console as rich_console

from testing.operator import builders
from tfparallel.compare import (
    comparison_pictures,
    comparison_report,
    comparison_text,
    complexity,
    machine_load,
    measure,
    progress,
    trial_jobs,
    trial_records,
    verdict,
)
from tfparallel.job_source import source
from tfparallel_operator.api import job_status, load, types
from tfparallel_operator.core import layout
from tfparallel_trainer.contract import environment

RECORDED = pathlib.Path(__file__).parent / "recorded"
"""Digits, 2 seeds, 4 epochs of 6 steps with 256 examples: `tfparallel compare` on 2 cores."""

EVEN = trial_jobs.Design(
    workers=2, servers=1, seeds=2, slow_worker=None, equal=trial_jobs.Equal.UPDATE
)
SLOW = dataclasses.replace(EVEN, slow_worker=5.0)


def recorded(mode: str, seed: int) -> trial_records.TrialRun:
    folder = RECORDED / f"{mode}-seed{seed}"
    return trial_records.parse(
        (folder / "steps.jsonl").read_text(),
        (folder / "summary.json").read_text(),
        processes=2 if mode == "sync" else 4,
        traffic=(),
    )


def line(time: float, event: str, **facts: object) -> str:
    return json.dumps({"time": time, "event": event, **facts})


def by_hand(
    lines: Sequence[str], traffic: Sequence[trial_records.Traffic] = ()
) -> trial_records.TrialRun:
    summary = (RECORDED / "sync-seed0" / "summary.json").read_text()
    model = line(0, "model", variables=4, bytes=1000)
    return trial_records.parse("\n".join([model, *lines]), summary, 2, traffic)


def epoch(began: float, losses: Sequence[float], pace: float, **evaluation: float) -> list[str]:
    """Steps of 10 examples each, `pace` seconds apart; then perhaps an evaluation."""
    steps = [
        line(began + pace * number, "step", examples=10, loss=loss, staleness=number % 3)
        for number, loss in enumerate(losses, 1)
    ]
    ended = began + pace * len(losses) + 0.5
    evaluations = [line(ended, "evaluation", metrics=evaluation)] if evaluation else []
    return [line(began, "epoch"), *steps, *evaluations]


TWO_EPOCHS = [
    *epoch(100, [4, 2], 1.0, loss=1.5, accuracy=0.5),
    *epoch(200, [2, 1, 1, 4], 0.25, loss=0.75, accuracy=0.9),
]


def test_a_real_log_holds_every_step_and_evaluation() -> None:
    for mode in trial_jobs.Mode:
        run = recorded(mode, 0)
        assert [len(epoch.steps) for epoch in run.epochs] == [6] * 4
        assert sum(step.examples for step in run.steps) == 4 * 1437
        assert run.model == trial_records.Model(variables=8, bytes=153_128)
        ends = list(measure.points(run))
        assert ends[-1].values["val_loss"] == run.metrics["val_loss"]
        assert ends[-1].values["loss"] == pytest.approx(run.metrics["loss"])


def test_staleness_is_that_of_the_summary() -> None:
    run = recorded("async", 0)
    counts = measure.staleness(run)
    assert sum(counts.values()) == 24
    assert measure.mean_staleness(run) == pytest.approx(run.metrics["staleness_mean"])
    assert max(counts) == run.metrics["staleness_max"]
    assert measure.staleness(recorded("sync", 0)) == {}
    assert measure.mean_staleness(recorded("sync", 0)) is None


def test_speed_counts_neither_the_first_epoch_nor_evaluations() -> None:
    run = by_hand(TWO_EPOCHS)
    assert measure.speed(run) == pytest.approx(40)
    assert measure.step_seconds(run) == pytest.approx(0.25)
    assert measure.epoch_seconds(run) == pytest.approx(1)
    alone = by_hand(epoch(100, [9, 1, 1, 1, 1], 0.5))
    assert measure.speed(alone) == pytest.approx(20)
    assert measure.epoch_seconds(alone) is None
    assert measure.speed(by_hand(epoch(100, [9], 0.5))) is None


def test_what_an_epoch_ends_with() -> None:
    first, second = measure.points(by_hand(TWO_EPOCHS))
    assert first.examples == 20
    assert first.values == {"loss": 3.0, "val_loss": 1.5, "val_accuracy": 0.5}
    assert second.seconds == pytest.approx(201.5 - 101)
    assert measure.last_variance(by_hand(TWO_EPOCHS)) == statistics.pvariance([2, 1, 1, 4])


def test_a_target_is_reached_at_the_first_end_that_is_as_good() -> None:
    run = by_hand(TWO_EPOCHS)
    point = measure.first(run, measure.Target("val_accuracy", 0.9))
    assert point is not None
    assert point.examples == 60
    first = measure.first(run, measure.Target("val_loss", 1.5))
    assert first is not None
    assert first.examples == 20
    assert measure.first(run, measure.Target("val_loss", 0.7)) is None
    assert measure.reached_by_all([run]) == measure.Target("val_loss", 0.75)
    plain = by_hand(epoch(0, [2, 4], 1.0))
    assert measure.reached_by_all([plain, run]) == measure.Target("loss", 3.0)


def test_what_is_sent_for_an_update_is_reported_between_two_moments() -> None:
    moments = [
        trial_records.Traffic(at, bytes=sent, segments=sent // 100)
        for at, sent in ((150, 5_000), (200.3, 10_000), (200.9, 16_000), (300, 99_000))
    ]
    run = by_hand(TWO_EPOCHS, moments)
    assert measure.per_update(run, lambda sent: sent.bytes) == 6_000 / 2
    assert measure.per_update(run, lambda sent: sent.segments) == 60 / 2
    assert measure.per_update(by_hand(TWO_EPOCHS, moments[:2]), lambda sent: sent.bytes) is None


def test_losses_that_are_no_numbers_are_read() -> None:
    run = by_hand([line(0, "epoch"), line(1, "step", examples=1, loss="NaN")])
    assert run.steps[0].loss != run.steps[0].loss
    assert measure.reached_by_all([run]) is None


def test_records_of_no_whole_run_are_refused() -> None:
    twice = [*TWO_EPOCHS, line(300, "model", variables=4, bytes=1000)]
    with pytest.raises(trial_records.RecordsError, match="started 2 times"):
        by_hand(twice)
    with pytest.raises(trial_records.RecordsError, match="made no step"):
        by_hand([line(0, "epoch")])


def compared(
    design: trial_jobs.Design, runs: comparison_report.Runs
) -> comparison_report.Comparison:
    return comparison_report.Comparison(
        job="digits",
        batch=256,
        design=design,
        runs=runs,
        target=None,
        user_lines=30,
        job_fields={trial_jobs.Mode.SYNC: 1, trial_jobs.Mode.ASYNC: 2},
    )


def the_report() -> comparison_report.ComparisonReport:
    runs = {variant: [recorded(variant.mode, seed) for seed in (0, 1)] for variant in EVEN.variants}
    return comparison_report.make(compared(EVEN, runs))


def row(figures: comparison_report.ComparisonReport, name: str) -> comparison_report.FigureRow:
    return next(row for group in figures.groups for row in group.rows if row.name == name)


def test_the_report_of_real_runs() -> None:
    figures = the_report()
    assert figures.variants == ["sync", "async"]
    assert [group.name for group in figures.groups] == ["performance", "stability", "complexity"]
    updates = row(figures, "updates")
    assert [cell.values for cell in updates.cells] == [[24, 24], [24, 24]]
    sync, asynchronous = row(figures, "staleness, mean").cells
    assert sync.mean is None
    assert asynchronous.mean == pytest.approx(
        statistics.fmean(recorded("async", seed).metrics["staleness_mean"] for seed in (0, 1))
    )
    final = row(figures, "final val_accuracy").cells[1]
    values = [recorded("async", seed).metrics["val_accuracy"] for seed in (0, 1)]
    assert final.deviation == pytest.approx(statistics.stdev(values))
    assert figures.loss == "val_loss"
    [sentence] = figures.verdicts
    assert sentence.startswith("With equal workers, ")
    assert "val_loss ≤ " in sentence
    assert [curve.examples for curve in figures.curves] == [[1437, 2874, 4311, 5748]] * 2
    assert sum(figures.staleness["async"].values()) == 48


def test_the_speed_that_is_kept_is_that_of_the_slow_runs() -> None:
    quick, slow = by_hand(TWO_EPOCHS), by_hand([*epoch(0, [1], 1), *epoch(9, [1, 1], 1.0)])
    runs = {variant: [slow if variant.slow else quick, quick] for variant in SLOW.variants}
    figures = comparison_report.make(compared(SLOW, runs))
    kept = row(figures, "speed kept with a slow worker")
    assert figures.variants[2:] == ["sync, worker 5x slower", "async, worker 5x slower"]
    assert [sentence.split(",")[0] for sentence in figures.verdicts] == [
        "With equal workers",
        "With a worker 5 times slower",
    ]
    assert [list(cell.values) for cell in kept.cells] == [[], [], [0.25, 1.0], [0.25, 1.0]]


def test_the_report_as_text() -> None:
    figures = the_report()
    page = comparison_text.page(figures, {"loss.svg": "the loss"})
    assert "| | sync | async |\n|---|---|---|\n| **performance** | | |\n" in page
    assert "| updates | 24 | 24 |\n" in page
    assert "| staleness, mean, updates | - | 0.354 ± 0.0295 |" in page
    assert "![the loss](loss.svg)" in page
    assert f"\n\n{figures.verdicts[0]}\n\n![" in page
    read = json.loads(comparison_text.machine(figures))
    assert read["staleness"]["async"] == {str(k): v for k, v in figures.staleness["async"].items()}
    few = comparison_report.Cell([1.0], asked=3)
    assert comparison_text.cell(few) == "1 (1 of 3 seeds)"


def contender(name: str, seconds: Sequence[float], steps: Sequence[float]) -> verdict.Contender:
    whole = [second + 10 for second in seconds]
    return verdict.Contender(name, *map(verdict.SeedStatistics.of, (seconds, steps, whole)))


@pytest.mark.parametrize(
    ("contenders", "sentence"),
    [
        ([], "none reaches loss ≤ 1 in every run."),
        ([contender("a", [1], [1])], "only a reaches loss ≤ 1 in every run."),
        (
            [contender("a", [5.0, 5.2], [60, 60]), contender("b", [2.0, 2.1], [40, 50])],
            "b reaches loss ≤ 1 first, 2.49 times as fast as a (2.05 s against 5.1 s; whole runs"
            " 12.05 s against 15.1 s). It takes 0.75 times as many steps.",
        ),
        (
            [contender("a", [4, 6], [60, 60]), contender("b", [5, 6], [60, 60])],
            "the difference between a and b until loss ≤ 1 (5 s against 5.5 s) lies within the"
            " spread of the seeds. a takes as many steps.",
        ),
        (
            [contender(name, [seconds], [6]) for name, seconds in (("a", 4), ("b", 2), ("c", 3))],
            "b reaches loss ≤ 1 before c (2 s against 3 s; whole runs 12 s against 13 s). It takes"
            " as many steps. One run of each does not show whether another one would do the same.",
        ),
        (
            [contender("a", [0, 0], [1, 1]), contender("b", [3, 3], [4, 4])],
            "a reaches loss ≤ 1 first, before b (0 s against 3 s; whole runs 10 s against 13 s)."
            " It takes 0.25 times as many steps.",
        ),
    ],
    ids=["none", "one", "factor", "spread", "one-seed", "at-once"],
)
def test_the_verdict(contenders: list[verdict.Contender], sentence: str) -> None:
    assert verdict.sentence("loss ≤ 1", contenders) == sentence


def test_times_of_a_busy_machine_lead_to_no_conclusion() -> None:
    contenders = [contender("a", [36.4, 36.5], [60, 60]), contender("b", [1.5, 1.6], [60, 60])]
    assert verdict.sentence("loss ≤ 1", contenders, 0.62) == (
        "no conclusion on time: other programs used up to 62% of this machine's CPU time (1.55 s"
        " against 36.45 s; whole runs 11.55 s against 46.45 s). Until loss ≤ 1, b takes as many"
        " steps as a."
    )
    assert "times as fast" in verdict.sentence("loss ≤ 1", contenders, 0.05)
    quiet = by_hand(TWO_EPOCHS)
    runs = {variant: [quiet, quiet] for variant in EVEN.variants}
    busy = {variant: [dataclasses.replace(quiet, others=0.4), quiet] for variant in EVEN.variants}
    for measured, concludes in ((runs, True), (busy, False)):
        figures = comparison_report.make(compared(EVEN, measured))
        assert ("no conclusion on time" in figures.verdicts[0]) is not concludes


def test_other_programs_are_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Of 4 cores that worked for 10 s of a 10 s run, ours used 15 s."""
    stat, moments, used = tmp_path / "stat", iter([0.0, 10.0]), iter([1.0, 16.0])
    ticks = os.sysconf("SC_CLK_TCK")
    stat.write_text(f"cpu  {100 * ticks} 0 0 7 7 0 0 0 50 0\ncpu0 1\n")
    monkeypatch.setattr(machine_load, "_STAT", stat)
    monkeypatch.setattr(machine_load, "_read_ours", lambda: next(used))
    monkeypatch.setattr("time.monotonic", lambda: next(moments))
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    meter = machine_load.LoadMeter()
    stat.write_text(f"cpu  {130 * ticks} {5 * ticks} 0 9 9 0 {5 * ticks} 0 99 0\ncpu0 1\n")
    assert meter.others() == pytest.approx((40 - 15) / 40)


def test_a_run_without_a_terminal_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    moments = iter([0.0, 5.0, 25.0, 30.0])
    screen = progress.Screen(2, lambda: next(moments))
    screen.begin(1, "sync, seed 0")
    for step in (1, 50, 60):
        screen.progress(job_status.ProgressStatus(step=step, total_steps=100, percent=step))
    shown = capsys.readouterr().err.splitlines()
    assert shown == [
        "run 1 of 2: sync, seed 0: begins",
        "run 1 of 2: sync, seed 0: step 50/100",
    ]
    screen.end(dataclasses.replace(by_hand(TWO_EPOCHS), others=0.4))
    assert "other programs used 40% of this machine's CPU time" in " ".join(
        capsys.readouterr().err.split()
    )


def test_a_mode_that_misses_the_target_in_a_seed_does_not_reach_it() -> None:
    good, bad = by_hand(TWO_EPOCHS), by_hand(epoch(0, [9, 9], 1.0, loss=9))
    runs = {variant: [good, bad if variant.mode == "sync" else good] for variant in EVEN.variants}
    figures = comparison_report.make(
        dataclasses.replace(compared(EVEN, runs), target=measure.Target("val_loss", 1.0))
    )
    assert figures.verdicts == ["With equal workers, only async reaches val_loss ≤ 1 in every run."]


def test_the_bar_of_a_comparison_fits_80_columns() -> None:
    file = io.StringIO()
    console = rich_console.Console(width=80, file=file, force_terminal=True, color_system=None)
    bar = progress.progress_bar(console)
    title = "run 12 of 12: async, worker 5x slower, seed 2"
    bar.add_task(title, total=12.0, completed=11, details="step 229/230")
    console.print(bar.get_renderable())
    [line] = file.getvalue().splitlines()
    assert len(line) <= 80
    assert all(part in line for part in (title, "━━━", "step 229/230", "0:00:0"))


@pytest.mark.usefixtures("processes")
def test_the_pictures_are_small_and_equal_when_they_are_drawn_again() -> None:
    drawn = comparison_pictures.pictures(the_report())
    assert set(drawn) == {
        comparison_pictures.LOSS,
        comparison_pictures.SPEED,
        comparison_pictures.STALENESS,
    }
    assert all(
        "<svg" in picture.document and len(picture.document) < 200_000 for picture in drawn.values()
    )
    assert comparison_pictures.pictures(the_report()) == drawn


def test_messages_and_bytes_follow_their_formulas() -> None:
    model = trial_records.Model(variables=8, bytes=1000)
    assert complexity.messages(trial_jobs.Mode.SYNC, model, workers=3, servers=1) == 12
    assert complexity.messages(trial_jobs.Mode.ASYNC, model, workers=3, servers=2) == 38
    assert complexity.weight_bytes(trial_jobs.Mode.SYNC, model, workers=3) == 4000
    assert complexity.weight_bytes(trial_jobs.Mode.SYNC, model, workers=1) == 0
    assert complexity.weight_bytes(trial_jobs.Mode.ASYNC, model, workers=3) == 2000


def test_lines_are_counted_without_comments_and_docstrings() -> None:
    module = '"""About\nit."""\n\nimport x  # here\n\n\ndef f():\n    """Says."""\n    # why\n'
    module += '    return x(\n        "text",\n    )\n'
    assert complexity.lines(module) == 5
    assert all(complexity.trainer_lines(mode) > 50 for mode in trial_jobs.Mode)


def a_source(servers: int = 0, **trainer: object) -> source.JobSource:
    spec = {"trainer": {"epochs": 2, **trainer}}
    job = (
        builders.a_job(trainer=True, spec=spec, chief=1, worker=1, ps=servers)
        if servers
        else builders.a_job(trainer=True, spec=spec, chief=1, worker=1)
    )
    return source.JobSource(job, pathlib.Path("/nowhere"), {}, ())


def test_runs_alternate_so_that_all_variants_meet_the_same_machine() -> None:
    trials = trial_jobs.trials(a_source(seed=7), SLOW)
    assert [trial.folder for trial in trials] == [
        f"{variant}-seed{seed}"
        for seed in (7, 8)
        for variant in ("sync", "async", "sync-slow", "async-slow")
    ]
    assert SLOW.slowed == {"worker-1": 5.0}
    assert EVEN.slowed == {}


def test_both_jobs_follow_from_one_manifest() -> None:
    sync, asynchronous = (
        trial.source.job
        for trial in trial_jobs.trials(
            a_source(servers=1, maxStaleness=3, globalBatchSize=60),
            dataclasses.replace(EVEN, workers=3, servers=2, seeds=1),
        )
    )
    assert layout.build(sync).strategy is types.Strategy.MULTI_WORKER_MIRRORED
    assert [replica.name for replica in layout.build(sync).all_replicas] == [
        "worker-0",
        "worker-1",
        "worker-2",
    ]
    assert [replica.name for replica in layout.build(asynchronous).all_replicas][:2] == [
        "chief-0",
        "worker-0",
    ]
    assert len(layout.build(asynchronous).all_replicas) == 6
    for job in (sync, asynchronous):
        assert job.spec.trainer is not None
        assert job.spec.trainer.global_batch_size == 60
        assert job.spec.run_policy.backoff_limit == 0
        for role in job.spec.tf_replica_specs.values():
            [container] = load.parse_template(role.template or {}).spec.containers
            assert [variable.name for variable in container.env] == [environment.STEP_LOG]
    assert sync.spec.trainer is not None
    assert sync.spec.trainer.max_staleness is None
    assert asynchronous.spec.trainer is not None
    assert asynchronous.spec.trainer.max_staleness == 3


def test_equal_steps_of_workers_make_more_updates() -> None:
    per_worker = dataclasses.replace(EVEN, equal=trial_jobs.Equal.WORKER, seeds=1)
    sync, asynchronous = (
        trial.source.job.spec.trainer
        for trial in trial_jobs.trials(
            a_source(globalBatchSize=64, steps=10, epochs=None), per_worker
        )
    )
    assert sync is not None
    assert asynchronous is not None
    assert (sync.global_batch_size, sync.steps) == (64, 10)
    assert (asynchronous.global_batch_size, asynchronous.steps) == (32, 20)
    with pytest.raises(load.SpecError, match="received 63, which 2 workers cannot share"):
        trial_jobs.trials(a_source(globalBatchSize=63), per_worker)


def test_a_job_without_the_trainer_is_refused() -> None:
    job = builders.a_job(chief=1, worker=1)
    with pytest.raises(load.SpecError, match=r"spec.trainer: missing"):
        trial_jobs.trials(source.JobSource(job, pathlib.Path(), {}, ()), EVEN)
