"""A job that is followed: what a person learns while it waits."""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from testing import waiting
from testing.operator import symptoms
from tfparallel import following, models
from tfparallel.diagnosis import findings
from tfparallel_operator.core import decision


class AdvisedBackend(symptoms.Backend):
    """A backend whose job waits until it is advised, and then succeeds."""

    def __init__(self, facts: findings.JobSnapshot) -> None:
        super().__init__(facts)
        self.advised = asyncio.Event()
        self.looks = 0

    async def watch_job(self, _: str) -> AsyncGenerator[models.Job, None]:
        yield self.facts.job
        await self.advised.wait()
        yield symptoms.succeeded().job

    async def get_job(self, name: str) -> models.Job:
        self.looks += 1
        return await super().get_job(name)

    async def read_logs(self, *_: Any, **__: Any) -> AsyncIterator[str]:
        for line in self.facts.last_lines:
            yield line

    async def list_operators(self) -> Sequence[models.Operator] | None:
        return self.facts.operators


@dataclasses.dataclass
class Screen:
    """Keeps the notes that it shows, and calls back at each."""

    react: Callable[[str], None] = lambda _: None
    notes: list[str] = dataclasses.field(default_factory=list)
    events: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.react(text)

    def event(self, event: decision.JobEvent) -> None:
        self.events.append((event.reason, event.message))


@pytest.mark.parametrize(
    ("symptom", "remedy"),
    [
        ("no operator", "helm install"),
        ("claim that is refused", "Delete the claim digits"),
        ("untrusted registry", "trust the registry's certificate"),
        ("quota", "kubectl describe quota team"),
    ],
)
async def test_a_job_that_waits_is_explained_once(
    symptom: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_ADVICE_SECONDS", 0)
    monkeypatch.setattr(following, "_LAST_LINES_SECONDS", 0)
    cluster: Any = AdvisedBackend(symptoms.SYMPTOMS[symptom]())

    def react(text: str) -> None:
        if remedy in text:
            # A few more looks find the same cause, and say nothing.
            asyncio.get_running_loop().create_task(finish(cluster.looks + 3))

    async def finish(looks: int) -> None:
        while cluster.looks < looks:
            await asyncio.sleep(0)
        cluster.advised.set()

    screen: Any = Screen(react)
    job = symptoms.SYMPTOMS[symptom]().job
    async with asyncio.timeout(waiting.LIMIT_SECONDS):
        ended = await following.follow(cluster, job, screen)
    assert ended.is_finished
    assert sum(remedy in note for note in screen.notes) == 1


class EventfulBackend(AdvisedBackend):
    """Its job ends at the third look at its Events."""

    event_looks = 0

    async def list_events(self, job: models.Job) -> Sequence[models.Event]:
        self.event_looks += 1
        if self.event_looks == 3:
            self.advised.set()
        return await super().list_events(job)


async def test_image_pulls_and_restarts_are_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_LOOK_SECONDS", 0)
    monkeypatch.setattr(following, "_LAST_LINES_SECONDS", 0)
    facts = symptoms.SYMPTOMS["missing image"]()
    cause = "attempt 2 after digits-worker-0 exited with code 137"
    restart = dataclasses.replace(
        symptoms.warning("digits-worker-0", "JobRestarting", cause), object="tfparalleljob/digits"
    )
    back_off = symptoms.warning("digits-worker-0", "BackOff", symptoms.BACK_OFF)
    endpoint = dataclasses.replace(  # of a controller that a second look contents
        symptoms.warning("digits", "FailedToCreateEndpoint", 'endpoints "digits" already exists'),
        object="endpoints/digits",
    )
    events = [restart, back_off, endpoint]
    cluster: Any = EventfulBackend(dataclasses.replace(facts, events=events))
    screen: Any = Screen()
    async with asyncio.timeout(waiting.LIMIT_SECONDS):
        await following.follow(cluster, facts.job, screen)
    assert screen.events == [("JobRestarting", cause)]
    [note] = screen.notes
    assert f"digits-worker-0: {symptoms.NO_IMAGE}" in note
