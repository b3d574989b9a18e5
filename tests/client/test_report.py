"""`tfparallel report`: the page of a run, and what is said where there is none."""

import dataclasses
import functools
import html
import html.parser
import json
import pathlib
import re
import shlex
import sys

import pytest

from testing import invocation, pages, paths, pictures, report_runs
from tfparallel import train_log
from tfparallel.backends.local import folders, record
from tfparallel.report import content, mesh, page, run_records, timeline
from tfparallel_operator.api import job_status, load, names
from tfparallel_operator.core import decision, observation

NOW = report_runs.at(100)

PAGE = paths.PAGES / "how-to/report.md"

WRITTEN = re.compile(r"20\d\d-\d\d-\d\d \d\d:\d\d UTC")
"""When a page was written, to the minute."""


class Outline(html.parser.HTMLParser):
    """Headings, identities and addresses of a page, and whether each element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.identities: list[str] = []
        self.addresses: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.identities += filter(None, [values.get("id")])
        self.addresses += filter(None, [values.get("href"), values.get("src")])
        if tag not in ("meta", "link", "br"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in ("meta", "link", "br"):
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["h2"]:
            self.headings.append(data)


pytestmark = pytest.mark.usefixtures("processes")  # matplotlib takes seconds

RUNS = {
    "loss": report_runs.with_a_loss(),
    "split": report_runs.of_a_split_model(),
    "pipeline": report_runs.of_a_split_model(stages=8, data=1, tensor=4),
}


PODS = RUNS["split"].pods


@functools.cache
def rendered(name: str) -> str:
    return page.render(RUNS[name], NOW)


@pytest.mark.parametrize("name", RUNS)
def test_a_page_needs_nothing_but_itself(name: str) -> None:
    text = rendered(name)
    outline = Outline(text)
    assert len(set(outline.identities)) == len(outline.identities)
    assert all(target.startswith(("#", "data:,")) for target in outline.addresses)
    assert {target[1:] for target in outline.addresses if target != "data:,"} <= set(
        outline.identities
    )
    assert "<script" not in text
    assert "url(http" not in text


@pytest.mark.parametrize("name", RUNS)
def test_every_picture_can_be_read_and_heard(name: str) -> None:
    for document in pictures.find(rendered(name)):
        assert pictures.title(document)
        assert pictures.description(document)
        assert list(pictures.faults(document)) == [], pictures.title(document)


def test_equal_runs_give_equal_pages() -> None:
    assert page.render(RUNS["loss"], NOW) == rendered("loss")


def test_a_page_says_what_ran_and_where_the_time_went() -> None:
    text = rendered("split")
    assert Outline(text).headings == [
        "What ran",
        "Loss and metrics",
        "Throughput, input, memory",
        "Where the time went",
        "Staleness",
        "Pipeline",
    ]
    text_of_page = pictures.words(text)
    assert "Goodput 30%: training 9s, restarting 8s, starting 5s" in text_of_page
    assert "mesh data 2 x stage 2 x tensor 2, 4 microbatches (1F1B)" in text_of_page
    assert "TensorFlow 2.21.0, Keras 3.14.0, Python 3.11.2" in text_of_page
    assert "ReplicaFailed: digits-worker-1 exited with code 137" in text_of_page
    assert "worker-0 node-0 digits-worker-0 2 Completed" in text_of_page
    assert "Step 16 (1 check) equals one process: gradients 3e-15 (limit 1e-10)" in text_of_page
    assert "The planner expected: Stage 0 sets the pace" in text_of_page
    titles = list(map(pictures.title, pictures.find(text)))
    assert titles.count("Timeline") == titles.count("Pipeline") == titles.count("Placement") == 2
    assert {"rank 7", "data 1", "stage 1", "tensor 1", "worker-1", "node-1"} <= boxes(text)


def boxes(text: str) -> set[str]:
    """Return the texts in the picture of the placement."""
    placement = next(
        picture for picture in pictures.find(text) if pictures.title(picture) == "Placement"
    )
    return {text.content for text in pictures.texts(placement)}


def test_the_end_of_a_run_is_seen_first() -> None:
    beginning, _, others = pictures.words(rendered("loss")).partition("What ran")
    assert "digits Succeeded loss 0.03333 val_loss 0.04 accuracy 0.9889 Goodput 30%" in beginning
    assert "its data (the part of each batch that it trains on)" in others
    failed = dataclasses.replace(
        RUNS["loss"],
        job=report_runs.job(names.State.FAILED, ended=30),
        records=(),
        events=(),
        pods=(),
        log=run_records.Log(
            "worker-1", ["File model.py, line 18", "<b>error</b>"], "run/worker-1.log"
        ),
    )
    text = page.render(failed, NOW)
    assert Outline(text).headings[0] == "Last lines of worker-1"
    assert '<span class="state failed">Failed</span>' in text
    assert "<pre>File model.py, line 18\n&lt;b&gt;error&lt;/b&gt;</pre>" in text
    assert "All lines: run/worker-1.log" in text


def test_a_local_run_has_no_limit_of_memory() -> None:
    run = dataclasses.replace(RUNS["loss"], is_local=True)
    assert content.make(RUNS["loss"]).memory_limit == 2**30
    assert content.make(run).memory_limit is None


def test_workers_that_train_together_have_their_place_too() -> None:
    shown = boxes(rendered("loss"))
    expected = {"rank 0", "rank 1", "data 0", "data 1", "worker-0", "node-0", "worker-1", "node-1"}
    assert expected <= shown
    assert "between pods: data" in shown


def test_a_split_model_that_still_trains_has_its_place_too() -> None:
    running = dataclasses.replace(RUNS["split"], stages=None)
    expected = boxes(rendered("split"))
    shown = boxes(page.render(running, NOW))
    assert "within a pod: stage, tensor · between pods: data" in shown
    assert {text for text in expected if "layer" not in text} <= shown


@pytest.mark.parametrize(
    ("strategy", "template"),
    [("ParameterServer", {}), ("MultiWorkerMirrored", {"spec": "of another version"})],
)
def test_devices_without_a_known_mesh_are_not_drawn(
    strategy: str, template: dict[str, object]
) -> None:
    run = report_runs.with_a_loss()
    run.job.manifest["spec"]["tfReplicaSpecs"]["Worker"]["template"] = template
    status = run.job.status.model_copy(update={"strategy": strategy})
    job = dataclasses.replace(run.job, status=status)
    assert mesh.find(dataclasses.replace(run, job=job)) is None


def test_the_timeline_names_what_interrupted_training() -> None:
    shown = [
        picture
        for picture in pictures.find(rendered("loss"))
        if pictures.title(picture) == "Timeline"
    ]
    for document in shown:
        assert "1 ReplicaFailed" in {text.content for text in pictures.texts(document)}
        assert "exited with code 137" in pictures.description(document)


def test_many_interruptions_are_marked_without_covering_each_other() -> None:
    figures = content.make(RUNS["loss"])
    first, last = figures.attempts
    many = [
        dataclasses.replace(first, number=1 + number, ended=0.3 * number) for number in range(90)
    ]
    picture = timeline.picture(dataclasses.replace(figures, attempts=[*many, last]))
    assert picture.wide is not None
    for drawing in (picture.narrow, picture.wide):
        assert list(pictures.faults(drawing.document)) == []


def test_values_of_variables_stay_out_of_the_page() -> None:
    text = rendered("loss")
    assert "hidden-value" not in text
    assert "name: TOKEN" in text
    assert "hidden-value" in json.dumps(RUNS["loss"].job.manifest)


def test_texts_of_strangers_are_no_markup() -> None:
    evil = "<script>alert(1)</script>"
    controls = "\x1b[2J\u202e"
    run = report_runs.with_a_loss()
    lines = [report_runs.line(8, "train", 10, epoch=0, metrics={evil: 1.0, "$x_$": 2.0})]
    events = [dataclasses.replace(event, message=evil + controls) for event in run.events]
    odd = dataclasses.replace(run, records=report_runs.parsed(lines), events=events)
    text = page.render(dataclasses.replace(odd, source=evil), NOW)
    assert "<script" not in text
    assert r"\x1b[2J\u202e" in text
    assert set("\x1b\u202e").isdisjoint(text)
    Outline(text)


def test_curves_break_where_training_starts_again_and_stay_small() -> None:
    figures = content.make(RUNS["loss"])
    assert figures.throughput is not None
    assert [len(part) for part in figures.throughput.parts] == [5, 5]
    assert figures.memory_limit == 2**30
    assert figures.staleness == {0: 70, 1: 20, 3: 10}
    [loss, _] = figures.metrics
    assert loss.training is not None
    # Of the steps that were made twice the newer values count.
    assert [step for step, _ in loss.training.points] == [10.0 * step for step in range(1, 10)]
    many = [(float(number), float(number)) for number in range(1001)]
    thinned = content.thin(many, 300)
    assert len(thinned) <= 300
    assert thinned[0] == (1.5, 1.5)


def test_losses_by_node_are_shown() -> None:
    job = RUNS["split"].job
    status = job.status.model_copy(update={"node_losses": {"gpu-7": 2, "gpu-8": 1}})
    run = dataclasses.replace(RUNS["split"], job=dataclasses.replace(job, status=status))
    text_of_page = pictures.words(page.render(run, NOW))
    assert "node losses gpu-7 2 (avoided), gpu-8 1" in text_of_page


def test_numbers_that_are_not_finite_are_left_out() -> None:
    metrics = {"loss": "NaN", "accuracy": 0.5}
    lines = [report_runs.line(8, "train", 10, epoch=0, metrics=metrics)]
    run = dataclasses.replace(RUNS["loss"], records=report_runs.parsed(lines))
    assert [metric.name for metric in content.make(run).metrics] == ["accuracy"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"records": (), "missing_results": "It is a script."}, "It is a script."),
        ({"records": ()}, "The run has recorded no step."),
        ({"pods": ()}, "When pods started and ended is not on record."),
        ({"pods": ()}, "Bars of processes whose pods are gone are those of the coordinator's"),
        ({"pods": PODS[2:]}, "Attempts whose pods and their Events are gone: 1."),
        ({"events": ()}, "The job's Events are gone: by default, a cluster drops them after"),
        ({"stages": None}, "The schedule is missing: the trainer writes it when the job"),
        ({"is_cut_off": True}, "To continue it: tfparallel run JOB.yaml --output"),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(changes: dict[str, object], sentence: str) -> None:
    run = dataclasses.replace(RUNS["split"], **changes)  # type: ignore[arg-type]
    text = page.render(run, NOW)
    assert sentence in pictures.words(text)
    Outline(text)


def test_a_log_that_is_being_written_is_read_up_to_its_last_line() -> None:
    text = report_runs.line(1, "train", 3) + '\n{"time": "2026'
    assert [line.step for line in train_log.parse(text, "train.jsonl")] == [3]
    infinite, huge = '{"time": "2026-01-01", "event": "train", "step": 1e999}', 10**400
    for line in (
        *("x", "[]", "[" * 20_000, infinite),
        *(report_runs.line(1, "train", 3, metrics={"loss": loss}) for loss in ("low", huge)),
    ):
        with pytest.raises(load.SpecError, match=r"train.jsonl:2: not a record of the trainer: '"):
            train_log.parse(f"{report_runs.line(1, 'train', 3)}\n{line}\n", "train.jsonl")


def invoke(*arguments: str) -> invocation.Result:
    return invocation.invoke(["report", *arguments])


def write_run(root: pathlib.Path, state: names.State, log: str = "") -> folders.Folders:
    """Leave a run as `tfparallel run` does."""
    layout = folders.Folders(root)
    root.mkdir(parents=True, exist_ok=True)
    status = job_status.JobStatus(state=state, strategy="Mirrored", attempt=1)
    layout.status.write_text(status.model_dump_json(by_alias=True, exclude_none=True))
    started = decision.JobEvent(decision.EventType.NORMAL, names.Reason.JOB_STARTED, "attempt 1")
    record.add_event(layout, started, report_runs.BEGIN)
    results = layout.claim("results") / "digits" / "logs"
    results.mkdir(parents=True)
    (results / "train.jsonl").write_text(log)
    layout.manifest.write_text(json.dumps(report_runs.job().manifest))
    return layout


def test_a_folder_becomes_a_page_next_to_its_run(tmp_path: pathlib.Path) -> None:
    log = "".join(f"{line}\n" for line in report_runs.attempt(2, 0, 5))
    write_run(tmp_path / "digits/20261101-120000", names.State.SUCCEEDED, log)
    result = invoke(str(tmp_path / "digits"))
    assert result.exit_code == 0, result.output
    file = tmp_path / "digits/20261101-120000/report.html"
    assert result.stdout == f"{file}\n"
    assert "loss by step" in file.read_text(encoding="utf-8")
    other = tmp_path / "new/page.html"
    assert invoke(str(tmp_path / "digits"), "-o", str(other)).exit_code == 0
    written, again = (path.read_text(encoding="utf-8") for path in (file, other))
    assert WRITTEN.sub("", again) == WRITTEN.sub("", written)


def test_without_matplotlib_a_page_has_no_pictures_and_says_what_to_install(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    log = "".join(f"{line}\n" for line in report_runs.attempt(2, 0, 5))
    layout = write_run(tmp_path / "run", names.State.SUCCEEDED, log)
    result = invoke(str(layout.root))
    assert result.exit_code == 0, result.output
    missing = "matplotlib is missing: install 'tfparallel[pictures]'"
    assert result.stderr == f"note: report.html has no pictures: {missing}\n"
    text = (layout.root / "report.html").read_text(encoding="utf-8")
    assert "<svg" not in text
    assert "Where the time went" in Outline(text).headings
    assert f"This page has no pictures: {missing}." in html.unescape(text)


def test_a_run_that_was_cut_off_is_shown_as_far_as_it_came(tmp_path: pathlib.Path) -> None:
    log = "".join(f"{line}\n" for line in report_runs.attempt(2, 0, 5))
    layout = write_run(tmp_path / "run", names.State.RUNNING, log + '{"time": "20')
    running = observation.Phase.RUNNING
    change = record.PodChange(
        name="digits-worker-0", replica="worker-0", attempt=1, phase=running, time=NOW
    )
    layout.pod_changes.write_text(f"{change.model_dump_json()}\n")
    assert invoke(str(layout.root)).exit_code == 0
    text = pictures.words((layout.root / "report.html").read_text(encoding="utf-8"))
    assert "Cut off" in text
    assert f"To continue it: tfparallel run JOB.yaml --output {layout.root}" in text
    assert "its end is not on record" in text


def test_a_run_of_an_older_version_is_shown_without_what_it_did_not_record(
    tmp_path: pathlib.Path,
) -> None:
    lines = [
        report_runs.line(8, "train", 10, epoch=0, metrics={"loss": 1.0}),
        report_runs.line(9, "done", 10),
    ]
    layout = write_run(tmp_path / "run", names.State.SUCCEEDED, "\n".join([*lines, ""]))
    layout.manifest.unlink()
    assert invoke(str(layout.root)).exit_code == 0
    text = pictures.words((layout.root / "report.html").read_text(encoding="utf-8"))
    for sentence in (
        "The folder holds no manifest: an older version wrote it.",
        "Memory is missing: an older version of the trainer did not record it.",
        "An older version of the trainer did not record when its processes started",
        "When pods started and ended is not on record.",
    ):
        assert sentence in text


def test_a_report_says_when_a_replica_was_a_straggler(tmp_path: pathlib.Path) -> None:
    lines = [
        report_runs.line(
            second, "train", second, epoch=0, metrics={"loss": 1.0}, straggler=straggler
        )
        for second, straggler in ((8, None), (40, "worker-1"), (71, "worker-1"), (75, "worker-0"))
    ]
    layout = write_run(tmp_path / "run", names.State.SUCCEEDED, "\n".join([*lines, ""]))
    assert invoke(str(layout.root)).exit_code == 0
    text = pictures.words((layout.root / "report.html").read_text(encoding="utf-8"))
    slow = "stayed slower than the other replicas: first reported after"
    assert f"worker-1 {slow} 40.0s, last after 1m11s." in text
    assert f"worker-0 {slow} 1m15s, last after 1m15s." in text


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("status.json", None, "no run is in this folder: status.json is missing. Give the folder"),
        ("status.json", "[]", "run/status.json: cannot be read ("),
        ("events.jsonl", "x\n", "run/events.jsonl: cannot be read ("),
        ("events.jsonl", "x\n", "Write the report with the version of tfparallel that ran the job"),
        ("manifest.yaml", "- 1", "run/manifest.yaml: cannot be read (it is no manifest)"),
        ("claims/results/digits/logs/train.jsonl", "x\n", "train.jsonl:1: not a record of the"),
    ],
)
def test_a_folder_that_is_no_run_ends_with_a_sentence(
    file: str, text: str | None, sentence: str, tmp_path: pathlib.Path
) -> None:
    write_run(tmp_path / "run", names.State.SUCCEEDED)
    if text is None:
        (tmp_path / "run" / file).unlink()
    else:
        (tmp_path / "run" / file).write_text(text)
    result = invoke(str(tmp_path / "run"))
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr
    assert result.stderr.count("error: ") == 1
    assert not (tmp_path / "run/report.html").exists()


def test_the_page_in_the_docs_shows_what_the_command_prints(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(pathlib.Path("runs/digits/20261101-120000"), names.State.SUCCEEDED)
    first, *_ = [
        command for block in pages.blocks(PAGE, "console") for command in pages.commands(block)
    ]
    result = invoke(*shlex.split(first.line)[2:])
    assert result.stdout.splitlines() == list(first.shown)


def test_the_page_in_the_docs_lists_every_section_and_activity() -> None:
    document = "how-to/report.md"
    listed = [row[0] for row in pages.rows(document, "## What the page shows")]
    assert listed == Outline(rendered("split")).headings
    cells = [row[0] for row in pages.rows(document, "## Where the time went")]
    activities = re.findall(r"\w+", " ".join(cells))
    assert activities == [activity for activity in names.Activity if activity in activities]
    logged = [row[0] for row in pages.rows(document, "<!-- timeline -->")]
    assert logged == [kind for kind in timeline.ACTIVITIES if kind not in {*names.Activity}]


def test_a_page_that_cannot_be_written_ends_with_a_sentence(tmp_path: pathlib.Path) -> None:
    write_run(tmp_path / "run", names.State.SUCCEEDED)
    result = invoke(str(tmp_path / "run"), "-o", str(tmp_path))
    assert result.exit_code == 1
    assert f"{tmp_path}: cannot be written" in result.stderr
