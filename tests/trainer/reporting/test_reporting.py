"""What is told of speed and of the time to go."""

import json
import math
import pathlib
import statistics
import time
from collections.abc import Generator

import pytest

from testing import clock
from tfparallel_trainer.contract import job_file, limits, outputs, verification
from tfparallel_trainer.contract import progress as protocol
from tfparallel_trainer.data import batch_division
from tfparallel_trainer.reporting import (
    console,
    input_wait,
    progress_pusher,
    records,
    reports,
    run_seconds,
    stragglers,
)
from tfparallel_trainer.reporting.reports import Reporter
from tfparallel_trainer.storage import folder as folders


class Kept(progress_pusher.Pusher):
    """Keeps what it receives."""

    def __init__(self) -> None:
        super().__init__(None, print)
        self.progress_reports: list[protocol.Report] = []

    def put(self, report: protocol.Report) -> None:
        self.progress_reports.append(report)


@pytest.fixture
def virtual_clock(monkeypatch: pytest.MonkeyPatch) -> clock.Clock:
    virtual_clock = clock.Clock(1000.0)
    monkeypatch.setattr(reports, "time", virtual_clock)
    return virtual_clock


def test_a_resumed_run_reports_the_pace_since_it_resumed(virtual_clock: clock.Clock) -> None:
    kept = Kept()
    reporter = Reporter(console.Console("test"), None, kept, chief=True)

    def step(number: int, seconds: float) -> None:
        virtual_clock.advance(seconds)
        reporter.stepped(number, 20, 0.5)
        reporter.train({"loss": 0.5}, number, 1000, 3)

    virtual_clock.advance(60)  # the model is built
    step(801, 30)  # the first step is traced
    (first,) = kept.progress_reports
    assert (first.step, first.percent, first.examples_per_second, first.eta) == (
        801,
        80,
        None,
        None,
    )
    step(802, 2)
    assert (kept.progress_reports[-1].examples_per_second, kept.progress_reports[-1].eta) == (
        "10",
        None,
    )
    virtual_clock.advance(100)
    reporter.evaluation({"loss": 0.4}, 802, 1000, 3)
    assert kept.progress_reports[-1].metrics == {"loss": "0.5", "val_loss": "0.4"}
    assert kept.progress_reports[-1].examples_per_second == "10", "the rate of training stays"
    step(803, 2)
    last = kept.progress_reports[-1]
    assert last.examples_per_second == "10", "an evaluation is no training time"
    assert last.eta == protocol.format_duration((100 + 2) / 1 * 197), "but it takes time"


def test_the_time_to_go_forgets_a_slow_start(virtual_clock: clock.Clock) -> None:
    """A check of a step, or files that no cache has yet, made it ten times as long."""
    kept = Kept()
    reporter = Reporter(console.Console("test"), None, kept, chief=True)
    etas = []
    for number in range(1, 101):
        virtual_clock.advance(20 if number == 3 else 1)
        reporter.stepped(number, 20, 0.5)
        reporter.train({"loss": 0.5}, number, 100, 0, has_ended=number == 100)
        etas.append(kept.progress_reports[-1].eta)
    assert etas[0] is None, "the first step says nothing"
    assert etas[1] is None, "one step is too few"
    assert etas[2] == protocol.format_duration(20 * 97)
    assert set(etas[9:99]) == {protocol.format_duration(100 - step) for step in range(10, 100)}
    assert etas[99] is None, "all is done"


def test_people_count_epochs_from_one(capsys: pytest.CaptureFixture[str]) -> None:
    """As Keras does: the current epoch, and at its end the same."""
    kept = Kept()
    reporter = Reporter(console.Console("test"), None, kept, chief=True, epochs=3)
    reporter.train({"loss": 0.5}, 1, 6, 0)
    reporter.train({"loss": 0.5}, 2, 6, 1, has_ended=True)
    reporter.train({"loss": 0.5}, 6, 6, 3, has_ended=True)
    shown = [line.split("  ")[1] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["epoch 1/3", "epoch 1/3", "epoch 3/3"]
    assert [report.epoch for report in kept.progress_reports] == [0, 1, 3], (
        "those that are completed"
    )


def test_a_step_that_has_been_shown_is_not_shown_again_at_the_end_of_its_epoch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept = Kept()
    reporter = Reporter(console.Console("test"), None, kept, chief=True, epochs=3)
    reporter.train({"loss": 0.5}, 2, 6, 0)
    reporter.train({"loss": 0.5}, 2, 6, 1, has_ended=True)
    assert capsys.readouterr().out.count("step 2/6") == 1
    assert [report.epoch for report in kept.progress_reports] == [0, 1]


def test_a_report_has_the_share_of_time_that_input_took(virtual_clock: clock.Clock) -> None:
    kept = Kept()
    reporter = Reporter(console.Console("test"), None, kept, chief=True)
    reporter.wait = input_wait.Wait(virtual_clock.monotonic)

    def batches() -> Generator[batch_division.Batch, None, None]:
        for _ in range(3):
            virtual_clock.advance(3)  # the input takes three seconds, the step one
            yield batch_division.Batch(1, [])

    for number, _ in enumerate(reporter.wait.timed(batches()), 1):
        virtual_clock.advance(1)
        reporter.stepped(number, 20, 0.5)
        reporter.train({"loss": 0.5}, number, 3, 0)
    reporter.train({"loss": 0.5}, 3, 3, 1)
    shares = [report.input_wait for report in kept.progress_reports]
    assert shares == [None, None, "0.75", "0.75"], "the first step is left out"


def test_a_report_names_the_straggler(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, virtual_clock = Kept(), clock.Clock()
    written = records.RunRecords(tmp_path, folders.Folder(tmp_path))
    reporter = Reporter(console.Console("test"), written, kept, chief=True)
    reporter.paces = stragglers.PaceComparison(virtual_clock)
    for step in range(1, 41):
        virtual_clock.advance(2)
        efforts = {
            replica: stragglers.Effort(int(pace * step), virtual_clock.now)
            for replica, pace in (("worker-0", 4), ("worker-1", 1), ("worker-2", 4))
        }
        assert reporter.compares
        reporter.compare(efforts)
        assert not reporter.compares
        reporter.train({"loss": 0.5}, step, 100, 0)
    written.close()
    named = [report.straggler for report in kept.progress_reports]
    assert named == [None] * 15 + ["worker-1"] * 25
    lines = (tmp_path / outputs.TRAIN_LOG).read_text().splitlines()
    assert [json.loads(line).get("straggler") for line in lines] == named
    assert capsys.readouterr().out.count("warning: worker-1 is slow") == 1


def test_a_report_costs_next_to_nothing(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = records.RunRecords(tmp_path, folders.Folder(tmp_path))
    reporter = Reporter(console.Console("test"), written, Kept(), chief=True)
    costs = []
    for step in range(1, 101):
        reporter.stepped(step, 20, 0.5)
        began = time.thread_time()
        reporter.train({"loss": 0.5, "accuracy": 0.9}, step, 100, 0)
        costs.append(time.thread_time() - began)
    written.close()
    assert capsys.readouterr().out.count("[test] step ") == 100
    with capsys.disabled():
        print(f" a report takes {1e3 * statistics.median(costs):.2f} ms ", end="")
    assert statistics.median(costs) < 0.01 * reports.INTERVAL_SECONDS


def test_a_report_never_holds_what_the_contract_refuses(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = Kept()
    written = records.RunRecords(tmp_path, folders.Folder(tmp_path))
    reporter = Reporter(console.Console("test"), written, kept, chief=True)
    values = {
        "\x1b[2Jloss": math.nan,
        "\x00" * 300: -math.inf,
        "größe\n": 1e300,
        **{f"m{number}": 0.0 for number in range(100)},
    }
    for step, total in ((1, 2), (2, 10**30), (2**62, 10**30)):
        reporter.stepped(step, 20, math.nan)
        reporter.train(values, step, total, 10**20)
        reporter.evaluation(values, step, total, 10**20)
    written.close()
    for report in kept.progress_reports:
        assert protocol.Report.model_validate_json(report.model_dump_json()) == report
    assert list(kept.progress_reports[0].metrics.items())[:3] == [
        (r"\x1b[2Jloss", "NaN"),
        (r"\x00" * 16, "-Infinity"),
        (r"größe\x0a", "1e+300"),
    ]
    last = kept.progress_reports[-1]
    assert (last.step, last.total_steps, last.percent) == (limits.MAX_COUNT, None, None)


def test_a_report_divides_the_time_since_the_first_step(virtual_clock: clock.Clock) -> None:
    kept = Kept()
    times = run_seconds.RunTimes(recorded_step=2, clock=virtual_clock)
    reporter = Reporter(console.Console("test"), None, kept, chief=True, times=times)
    for step in (1, 2, 3):
        virtual_clock.advance(10)
        reporter.stepped(step, 20, 0.5)
    reporter.train({"loss": 0.5}, 3, 10, 0)
    assert kept.progress_reports[-1].seconds == protocol.RunSeconds(training=10, recomputing=10)


def test_a_report_places_the_parts_of_a_split_model() -> None:
    kept = Kept()
    reporter = Reporter(console.Console("test"), None, kept, chief=True)
    reporter.train({"loss": 0.5}, 1, 10, 0)
    split = protocol.Placement(mesh=job_file.Mesh(tensor=2))
    reporter.placement = lambda: split
    reporter.train({"loss": 0.5}, 2, 10, 0)
    assert [report.placement for report in kept.progress_reports] == [None, split]


def test_a_model_that_does_not_fit_is_reported_before_the_first_step_as_no_progress() -> None:
    kept = Kept()
    reporter = Reporter(console.Console("test"), None, kept, chief=True)
    reporter.starts(7)
    memory = protocol.MemoryPlan(stage=0, peak_bytes=5, device_bytes=5)
    for peak in (5, 6):
        planned = memory.model_copy(update={"peak_bytes": peak})
        split = protocol.Placement(mesh=job_file.Mesh(tensor=2), memory=planned)
        reporter.placement = split.model_copy
        reporter.starts(7)
    assert kept.progress_reports == [
        protocol.Report(step=7, before_first_step=True, placement=split)
    ]


def test_a_check_is_said_recorded_and_reported(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = Kept()
    written = records.RunRecords(tmp_path, folders.Folder(tmp_path))
    reporter = Reporter(console.Console("test"), written, kept, chief=True)
    loss = verification.Quantity.LOSS
    for step, value in ((1, 3e-16), (2, 1e-16)):
        difference = verification.Difference(value, 1e-10)
        reporter.verified(verification.Check(step, {loss: difference}, ["the metric auc"]))
    reporter.train({"loss": 0.5}, 2, 10, 0)
    written.close()
    line = "[test] Step 1 equals one process: loss 3e-16 (limit 1e-10); not compared: the metric"
    printed = capsys.readouterr().out
    assert line in printed
    assert printed.count("equals one process") == 1  # the end of training sums up the others
    log = (tmp_path / outputs.TRAIN_LOG).read_text(encoding="utf-8").splitlines()
    lines = [json.loads(line) for line in log]
    assert [
        (line["step"], line["differences"], line["omitted"])
        for line in lines
        if line["event"] == outputs.TrainEvent.VERIFIED
    ] == [(1, {"loss": 3e-16}, ["the metric auc"]), (2, {"loss": 1e-16}, ["the metric auc"])]
    reported = kept.progress_reports[-1].verification
    assert reported is not None
    assert (reported.checks, reported.step, reported.compared[0].difference) == (2, 2, "3e-16")
