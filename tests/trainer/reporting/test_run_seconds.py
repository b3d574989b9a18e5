"""Where the time of the coordinator's process goes after its first step."""

import json
import pathlib

import hypothesis
from hypothesis import strategies as st

from testing import clock
from tfparallel_trainer.contract import progress
from tfparallel_trainer.reporting import records, run_seconds
from tfparallel_trainer.storage import folder


def test_pauses_and_steps_that_are_made_again_are_no_training() -> None:
    now = clock.Clock()
    times = run_seconds.RunTimes(recorded_step=12, clock=now)
    with times.evaluating():  # before the first step, which is the start
        now.advance(50)
    assert times.divide(0) == progress.RunSeconds(training=0)
    times.stepped(10, 0)
    for step in (11, 12):
        now.advance(4)
        times.stepped(step, waited=1)
    with times.checkpointing():
        now.advance(3)
    for step in (13, 14):
        now.advance(5)
        times.stepped(step, waited=2)
    with times.evaluating():
        now.advance(6)
    assert times.divide(waited=2) == progress.RunSeconds(
        training=9, input_wait=2, evaluating=6, checkpointing=3, recomputing=7
    )


@hypothesis.given(
    st.lists(st.tuples(st.sampled_from("sec"), st.floats(0, 100), st.floats(0, 100)), max_size=20),
    st.integers(0, 10),
)
def test_the_parts_are_the_whole_seconds_since_the_first_step(
    events: list[tuple[str, float, float]], recorded_step: int
) -> None:
    now = clock.Clock()
    times = run_seconds.RunTimes(recorded_step, now)
    times.stepped(1, 0)
    waited = 0.0
    for step, (event, seconds, wait) in enumerate(events, 2):
        if event == "s":
            now.advance(seconds)
            waited += wait  # it may be longer than the step: the input is another thread
            times.stepped(step, waited)
        else:
            with times.evaluating() if event == "e" else times.checkpointing():
                now.advance(seconds)
        parts = times.divide(waited).model_dump()
        assert min(parts.values()) >= 0
        assert sum(parts.values()) == int(now.now)


def test_a_log_knows_the_last_step_of_earlier_attempts(tmp_path: pathlib.Path) -> None:
    first = records.RunRecords(tmp_path, folder.Folder(tmp_path))
    assert first.recorded_step == 0
    for step in (1, 900, 850):  # a checkpoint is recorded once it is written
        first.event("train", step, text="x" * 200_000 if step == 1 else "")
    first.close()
    [log] = [path for path in tmp_path.rglob("*.jsonl") if '"step": 900' in path.read_text()]
    with log.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({"event": "unknown"}) + '\n{"step": 99')  # it was killed here
    again = records.RunRecords(tmp_path, folder.Folder(tmp_path))
    assert again.recorded_step == 900
    again.close()
