"""Random histories of runs, each with its accounting by rules that are simpler than the report's.

A history is lived second by second. It notes what it does as pieces of time, and leaves a train
log, Events and pods as a run does. If a process goes back to a checkpoint, all pieces of training
after that checkpoint become lost steps.
"""

import collections
import dataclasses
import enum
from collections.abc import Mapping

from hypothesis import strategies as st

from testing import report_runs
from tfparallel.report import chronology, run_records
from tfparallel_operator.api import names
from tfparallel_trainer.contract import outputs

A = chronology.LoggedActivity
_AGAIN = (A.TRAINING, A.INPUT, A.EVALUATION)
"""What a process does again if its checkpoint is older."""


class End(enum.StrEnum):
    """How a process of the coordinator ends."""

    LOSS = "another replica is lost, and all run again"
    CRASH = "it exits with an error, and runs again"
    STOP = "somebody suspends the job, or presses Ctrl-C"
    SILENT_STOP = "the same, by a version that wrote no Event"
    KILL = "all processes are killed at once, the operator's too"
    FAIL = "the job fails"
    DONE = "all is trained"
    NONE = "it runs on"


_REASONS = {
    End.LOSS: names.Reason.REPLICA_FAILED,
    End.CRASH: names.Reason.REPLICA_FAILED,
    End.STOP: names.Reason.JOB_SUSPENDED,
    End.FAIL: names.Reason.BACKOFF_LIMIT_EXCEEDED,
}
_RESTARTS = (End.LOSS, End.CRASH)
_STATES = {
    End.DONE: names.State.SUCCEEDED,
    End.FAIL: names.State.FAILED,
    End.STOP: names.State.SUSPENDED,
    End.LOSS: names.State.RESTARTING,
    End.CRASH: names.State.RESTARTING,
}


@dataclasses.dataclass
class Piece:
    """A part of the time."""

    activity: chronology.LoggedActivity
    begin: float
    end: float


@dataclasses.dataclass
class Row:
    """What the table of starts has to say of a process."""

    began: float
    ended: float
    steps: str
    reason: str


class History:
    """A run: `live` a process after the other, and read what they left behind."""

    def __init__(self, draw: st.DrawFn, *, has_pods: bool) -> None:
        """Args: has_pods: whether pods that are gone are on record, as in a local run."""
        self._draw, self._has_pods = draw, has_pods
        self.now, self.step = 0.0, 0
        self.pieces: list[Piece] = []
        self.rows: list[Row] = []
        self._lines: list[str] = []
        self._events = [report_runs.event(0, names.Reason.JOB_STARTED, "attempt 1")]
        self._pods: list[run_records.PodRun] = []
        self._saved: list[tuple[int, float]] = []
        self._end: End | None = None
        self._sealed = 0.0
        """When the workers last succeeded: no process trains again what was trained before."""

    def live(self, end: End, *, trains: bool) -> None:
        """Start a process, and end it; without `trains` it makes no step."""
        restarts = self._end in _RESTARTS
        self._spend(A.RESTART if restarts else A.WAITING, self._seconds(2, 5))
        if self._end is not None and not restarts:
            self._event(names.Reason.JOB_RESUMED, "attempt", before=0.5)
        began, resumed = self.now, "none"
        self._event(names.Reason.REPLICAS_RUNNING, "")
        if trains and (importing := self._seconds(0, 3)):  # it counts its seconds only then
            activity = A.START if self._has_pods else A.WAITING
            self._spend(A.RESTART if restarts else activity, importing)
            began += 0 if self._has_pods else importing
        self._spend(A.RESTART if restarts else A.START, startup := self._seconds(2, 6))
        if trains:
            self._go_back()
            resumed = str(self.step)
            self.step += 1
            self._line(outputs.TrainEvent.FIRST_STEP, seconds=startup, attempt=1)
            for _ in range(self._draw(st.integers(0, 5))):
                self._act()
        ended = self._finish(end, trains=trains)
        steps = f"{resumed} to {self.step}" if trains else resumed
        reason = names.Reason(_REASONS[end]).value if end in _REASONS else ""
        self.rows.append(Row(began, ended, steps, reason))
        if self._has_pods:
            last_time = self.now if end is End.NONE else ended
            self._pods.append(report_runs.pod("worker-0", 1, began, last_time, "ended"))
        self._end = end

    def _act(self) -> None:
        match self._draw(st.sampled_from(["train", "train", "evaluate", "save", "other"])):
            case "evaluate":
                self._spend(A.EVALUATION, 1.0)
                self._line(outputs.TrainEvent.EVALUATION, metrics={"loss": 1.0})
            case "save":
                self._save(trains=self._draw(st.booleans()))
            case "other":  # another replica runs again alone
                lost = names.EventAction.RESTART_REPLICA, "digits-worker-1"
                self._event(names.Reason.REPLICA_LOST, "digits-worker-1 vanished", *lost)
                self._event(names.Reason.REPLICAS_RUNNING, "")
                self._train()
            case _:
                self._train()

    def _train(self) -> None:
        seconds, waited = self._seconds(2, 4), self._draw(st.sampled_from([0.0, 0.25]))
        self._spend(A.TRAINING, seconds * (1 - waited))
        self._spend(A.INPUT, seconds * waited)
        self.step += 10
        self._line(outputs.TrainEvent.TRAIN, metrics={"loss": 1.0, "input_wait": waited})

    def _save(self, *, trains: bool = False) -> None:
        """Save a checkpoint, and perhaps train while it is written."""
        if not self._saved or self._saved[-1][0] < self.step:
            self._spend(A.CHECKPOINT, 0.5)
            step, moment = saved = self.step, self.now
            self._saved.append(saved)
            if trains:
                self._train()
            facts = {"seconds": 0.5, "writeSeconds": self.now - moment}
            kind = outputs.TrainEvent.CHECKPOINT
            self._lines.append(report_runs.line(self.now, kind, step, **facts))

    def _go_back(self) -> None:
        """Resume from a checkpoint: mostly the newest; a broken one is passed over."""
        number = self._draw(st.sampled_from([1, 1, 1, 2, 100]))
        self._saved = self._saved[: max(0, len(self._saved) - number + 1)]
        self.step, moment = (self._saved or [(0, self._sealed)])[-1]
        for piece in self.pieces:
            if piece.begin >= moment and piece.activity in _AGAIN:
                piece.activity = A.LOST

    def _finish(self, end: End, *, trains: bool) -> float:
        """End the process; return when it made its last step, or was ended."""
        if end is End.DONE:
            self._spend(A.END, 1.0)
            self._line(outputs.TrainEvent.DONE)
            self._spend(A.END, 0.5)
            self._event(names.Reason.WORKERS_SUCCEEDED, "worker-0 ended with success")
            self._saved, self._sealed = [(self.step, self.now)], self.now
        elif end in _REASONS:
            if trains:  # steps that nobody reported
                self._spend(A.TRAINING, self._seconds(0, 2))
            self._event(_REASONS[end], "", *_ANSWERS.get(end, ()))
            if trains and end is End.STOP and self._draw(st.booleans()):
                self.step += 3
                self._save()
        elif end is End.NONE and trains:
            self._spend(A.TRAINING, 2.0)
        return self.now

    def _spend(self, activity: chronology.LoggedActivity, seconds: float) -> None:
        if seconds:
            self.pieces.append(Piece(activity, self.now, self.now + seconds))
            self.now += seconds

    def _seconds(self, least: int, most: int) -> float:
        return float(self._draw(st.integers(least, most)))

    def _line(self, event: outputs.TrainEvent, **fields: object) -> None:
        self._lines.append(report_runs.line(self.now, event, self.step, **fields))

    def _event(
        self,
        reason: names.Reason,
        message: str,
        action: names.EventAction = names.EventAction.RECONCILE,
        pod: str = "",
        *,
        before: float = 0.0,
    ) -> None:
        event = report_runs.event(self.now - before, reason, message, action, pod)
        self._events.append(event)

    @property
    def run(self) -> run_records.RunRecords:
        """What it left behind."""
        end = self._end or End.NONE
        is_over = end in (End.DONE, End.FAIL)
        state = _STATES.get(end, names.State.RUNNING)
        return run_records.RunRecords(
            job=report_runs.job(state, self.now if is_over else None),
            source="here",
            now=report_runs.at(self.now),
            is_cut_off=end in (End.KILL, End.SILENT_STOP),
            events=self._events,
            pods=self._pods,
            records=report_runs.parsed(self._lines),
        )

    @property
    def seconds(self) -> Mapping[chronology.LoggedActivity, float]:
        """How long each activity took."""
        total: dict[chronology.LoggedActivity, float] = collections.defaultdict(float)
        for piece in self.pieces:
            total[piece.activity] += piece.end - piece.begin
        return {activity: seconds for activity, seconds in total.items() if seconds}


_ANSWERS = {
    End.LOSS: (names.EventAction.RESTART_ALL, "digits-worker-1"),
    End.CRASH: (names.EventAction.RESTART_REPLICA, "digits-worker-0"),
}


@st.composite
def histories(draw: st.DrawFn) -> History:
    """A history of some processes, the last of which may still run."""
    has_pods = draw(st.booleans())
    history = History(draw, has_pods=has_pods)
    later = draw(st.integers(0, 4))
    for attempt in range(later + 1):
        trains = draw(st.booleans())
        ends = [
            end
            for end in End
            if (end is not End.NONE or attempt == later)
            and (end is not End.DONE or trains)
            # Of a process that left no sign of its end, nobody knows when that was.
            and (end not in (End.KILL, End.SILENT_STOP) or trains or has_pods)
        ]
        history.live(draw(st.sampled_from(ends)), trains=trains)
    return history
