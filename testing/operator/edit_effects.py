"""What an edit does to a job, by the decisions that follow: with it, and without it. Pure."""

import dataclasses
import enum
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from testing import pages
from testing.operator import builders, edits
from tfparallel_operator.api import job_status, load, names
from tfparallel_operator.core import installation, observation, pod_ends
from tfparallel_operator.core.status import conditions

_SETTINGS = dataclasses.replace(builders.SETTINGS, gangs=installation.Gangs())
_TIMES = (60, 1_000, 4_000)
"""Seconds that pass one after another: between them lie all times of the examples."""


class Effect(enum.StrEnum):
    """What an edit does, in the words of docs/explanation/life.md."""

    REFUSED = "refused"
    NOTHING = "nothing"
    AT_ONCE = "at once"
    LATER_PODS = "later pods"
    NEW_ATTEMPT = "new attempt"
    NEXT_ATTEMPT = "next attempt"
    RESUMED = "when resumed"
    CHIEF = "chief again"
    DELETES_PODS = "pods deleted"


class LifeStage(enum.StrEnum):
    """Where a job is in its life."""

    SUSPENDED = "suspended"
    WAITING = "waiting"
    RUNNING = "running"
    RESTARTING = "restarting"
    ENDED = "ended"


@dataclasses.dataclass
class Trial:
    """A job with its children, and its manifest."""

    world: builders.World
    manifest: dict[str, Any]

    def copy(self) -> "Trial":
        world = dataclasses.replace(
            self.world,
            pods=dict(self.world.pods),
            groups=dict(self.world.groups),
            manifests=[],
            created=[],
            events=[],
        )
        return Trial(world, self.manifest)

    def edit(self, path: edits.Path, value: Any) -> bool:
        """Edit a field as a person does; say whether the API server admits it."""
        after = edits.edited(self.manifest, path, value)
        if edits.refusal(self.manifest, after):
            return False
        try:
            job = edits.parse(after)
        except load.SpecError:
            return False
        self.manifest = after
        self.world.job = job.model_copy(update={"status": self.world.status})
        return True

    def run_until_quiet(self) -> None:
        if not self.world.deleted:
            self.world.run_until_quiet()

    def run(self) -> None:
        """Let all pods run that wait."""
        if any(pod.phase is observation.Phase.PENDING for pod in self.world.pods.values()):
            self.world.run()
            self.run_until_quiet()

    def exit(self, name: str, code: int) -> None:
        """End a pod that has not ended; code 137 is the kernel's when memory runs out."""
        if name in self.world.pods and not self.world.pods[name].phase.ended:
            self.world.exit(name, code)
            if code == 137:
                killed = dataclasses.replace(builders.an_exit(code), reason=pod_ends.OOM_KILLED)
                self.world.update(name, exit=killed)
        self.run_until_quiet()

    def pass_time(self, *times: float, run: bool = True) -> list[Any]:
        """Let time pass, and return what the job is like each time."""
        return [self._after(seconds, run) for seconds in times]

    def _after(self, seconds: float, run: bool) -> Any:
        self.world.advance(seconds)
        self.run_until_quiet()
        if run:
            self.run()
        return self.life()

    def life(self) -> Any:
        """Return what a person sees of the job, but for what its pods are made of."""
        status = self.world.status.model_copy(update={"observed_generation": 0, "conditions": ()})
        truths = [
            (condition.type, condition.status, condition.reason)
            for condition in self.world.status.conditions
        ]
        pods = {name: (pod.phase, pod.attempt) for name, pod in self.world.pods.items()}
        groups = [dict(group.spec) for group in self.world.groups.values()]
        return self.world.deleted, status, truths, pods, groups

    def pods_made(self) -> list[str]:
        """Return the manifests of the pods that were made since the copy."""
        pods = (created for created in self.world.manifests if created["kind"] == "Pod")
        return [json.dumps(pod, sort_keys=True) for pod in pods]


Probe = Callable[[Trial], Any]
"""Something that happens to a job; it returns what the job is like meanwhile."""


def build_trial(job: str, state: LifeStage) -> Trial:
    """Return a job in a state."""
    return _build_trial(job, state).copy()


@functools.cache
def _build_trial(job: str, state: LifeStage) -> Trial:
    manifest = edits.document(job)
    trial = Trial(builders.World(edits.parse(manifest), settings=_SETTINGS), manifest)
    trial.run_until_quiet()
    if state is LifeStage.WAITING:
        return trial
    trial.run()
    trial.world.advance(3600)
    _report(trial.world)
    match state:
        case LifeStage.SUSPENDED:
            trial.edit(("runPolicy", "suspend"), True)
            trial.run_until_quiet()
            assert conditions.is_true(trial.world.status, names.ConditionType.SUSPENDED)
        case LifeStage.RESTARTING:
            for _ in range(2):  # The second restart pauses: nothing of its attempt is made yet.
                trial.world.exit("job-worker-1", 71)
                trial.world.step()
                trial.world.reap()
                if trial.world.status.restarts.failure == 1:
                    trial.run_until_quiet()
                    trial.run()
            assert conditions.is_true(trial.world.status, names.ConditionType.RESTARTING)
        case LifeStage.ENDED:
            trial.exit("job-chief-0" if "job-chief-0" in trial.world.pods else "job-worker-0", 0)
            assert conditions.finished(trial.world.status)
    return trial


def _report(world: builders.World) -> None:
    """Have the coordinator report progress."""
    progress = job_status.ProgressStatus(step=7, last_update_time=world.now)
    status = world.status.model_copy(update={"progress": progress})
    world.job = world.job.model_copy(update={"status": status})


def effect(
    path: edits.Path, example: edits.Example, state: LifeStage, probes: list["Probe"]
) -> Effect:
    """Return what an edit does to a job in a state; the probe that shows it comes first then."""
    trial = build_trial(example.job, state)
    if edits.refusal(trial.manifest, edits.edited(trial.manifest, path, example.value)):
        return Effect.REFUSED
    assert trial.edit(path, example.value), f"{path}: no example in edits.EXAMPLES is valid"
    if (answer := _answer(trial.copy(), build_trial(example.job, state))) is not None:
        return answer
    resumes = state is LifeStage.SUSPENDED
    result = Effect.NOTHING
    for probe in probes[:]:
        life, pods = _probed(example.job, state, probe)
        after = trial.copy()
        differs = _follow(after, probe, resumes=resumes) != life
        if differs or after.pods_made() != pods:
            result = Effect.RESUMED if resumes else Effect.LATER_PODS
        if differs or result is Effect.RESUMED:
            probes.remove(probe)
            probes.insert(0, probe)
            return result if resumes else Effect.AT_ONCE
    return result


def _answer(edited: Trial, other: Trial) -> Effect | None:
    """Return what becomes of the replicas at once, or as soon as they have run for a while."""
    for trial in (edited, other):
        trial.run_until_quiet()
    if other.world.pods and not edited.world.pods:
        return Effect.DELETES_PODS
    for trial in (edited, other):
        trial.pass_time(100)
    before, after = other.world.status, edited.world.status
    if after.attempt > before.attempt:
        return Effect.NEW_ATTEMPT
    if after.replica_attempts != before.replica_attempts:
        return Effect.CHIEF
    return None if after.workers == before.workers else Effect.NEXT_ATTEMPT


@functools.cache
def _probed(job: str, state: LifeStage, probe: "Probe") -> tuple[Any, list[str]]:
    """Return what a probe shows of a job that nobody edits: its life, and its new pods."""
    trial = build_trial(job, state)
    life = _follow(trial, probe, resumes=state is LifeStage.SUSPENDED)
    return life, trial.pods_made()


def _follow(trial: Trial, probe: Probe, *, resumes: bool) -> Any:
    trial.run_until_quiet()
    if resumes:
        trial.edit(("runPolicy", "suspend"), False)
        trial.run_until_quiet()
    return trial.life(), probe(trial)


def _idle(trial: Trial) -> Any:
    trial.run()
    trial.world.advance(1)
    _report(trial.world)
    return trial.pass_time(*_TIMES)


def _waits(trial: Trial) -> Any:
    if "job-worker-1" in trial.world.pods and not conditions.finished(trial.world.status):
        failed = observation.Phase.FAILED
        trial.world.update("job-worker-1", phase=failed, disrupted=True)
    return trial.pass_time(*_TIMES, run=False)


def _loses(code: int) -> Probe:
    def probe(trial: Trial) -> Any:
        lives = []
        for _ in range(2):
            if "job-worker-1" in trial.world.pods:
                trial.world.update("job-worker-1", node="node")
            trial.exit("job-worker-1", code)
            lives += trial.pass_time(20)
        return lives

    return probe


def _succeeds(trial: Trial) -> Any:
    trial.run()
    trial.exit("job-chief-0", 0)
    trial.exit("job-worker-0", 0)
    return [trial.life(), *trial.pass_time(*_TIMES, run=False)]


def _scales(workers: int) -> Probe:
    def probe(trial: Trial) -> Any:
        if "job-worker-1" in trial.world.pods:
            trial.world.update("job-worker-1", phase=observation.Phase.FAILED, disrupted=True)
        trial.run_until_quiet()
        trial.run()
        admitted = trial.edit(("tfReplicaSpecs", "<role>", "replicas"), workers)
        ended = conditions.finished(trial.world.status)
        return admitted or ended, trial.pass_time(100, 2_000)

    return probe


PROBES: tuple[Probe, ...] = (
    _idle,
    _waits,
    _succeeds,
    *(_loses(code) for code in (66, 71, 137)),
    *(_scales(workers) for workers in (1, 4)),
)
"""What may happen to a job after an edit."""


Row = tuple[Effect, ...]
"""What an edit does, by state."""


@functools.cache
def effects() -> Mapping[tuple[edits.Path, str], Row]:
    """Return what each edit of each field does; the second part of a key tells edits apart."""
    rows = {}
    for path, node in edits.fields().items():
        for example in edits.examples(path, node):
            probes = list(PROBES)
            row = tuple(effect(path, example, state, probes) for state in LifeStage)
            rows[path, example.title] = row
    return rows


def table() -> str:
    """Return the effects as a table in Markdown: a row for all fields whose edits do the same."""
    by_row: dict[Row, list[str]] = {}
    for name, row in _merged(effects()):
        by_row.setdefault(row, []).append(name)
    rows = ([", ".join(fields), *row] for row, fields in by_row.items())
    return pages.table(("edit of", *LifeStage), rows)


def _merged(rows: Mapping[tuple[edits.Path, str], Row]) -> Iterator[tuple[str, Row]]:
    """Yield the rows, with one for all fields below an object whose edits do the same."""
    named = set()
    for (path, title), row in rows.items():
        for length in range(1, len(path) + 1):
            prefix = path[:length]
            below = {row for (other, _), row in rows.items() if other[:length] == prefix}
            if title or below == {row}:
                break
        if title:
            prefix = path
        name = f"`{'.'.join(part for part in prefix if part != '[]')}` {title}".rstrip()
        if name not in named:
            named.add(name)
            yield name, row
