"""Parts that fail begin again, later and later."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from testing import clock
from tfparallel_operator.engine.run import parts


class FailingPart:
    """A part that fails some times, and then runs."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.runs = asyncio.Event()

    async def run(self) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("a bug")
        self.runs.set()
        await asyncio.Event().wait()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(parts, "PAUSES_SECONDS", (0.0, 0.0))
    return []


async def test_a_part_begins_again_until_it_runs_and_is_well_after_a_while(
    counted: list[str],
) -> None:
    time, part = clock.Clock(), FailingPart(parts.MANY_FAILURES)
    watched = parts.Parts(counted.append, time)
    async with _group() as group:
        watched.start(group, "watch", part.run)
        await part.runs.wait()
        assert counted == ["watch"] * parts.MANY_FAILURES
        assert watched.problem() == (
            "the part 'watch' has failed 3 times in a row: RuntimeError: a bug"
        )
        time.now += parts.CALM_SECONDS + 1
        assert watched.problem() == ""


async def test_a_part_that_lacks_what_it_needs_ends_its_group(counted: list[str]) -> None:
    async def listen() -> None:
        raise OSError("the port is taken")

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            parts.Parts(counted.append).start(group, "probes", listen, needs=OSError)
    assert "the port is taken" in str(caught.value.exceptions[0])
    assert counted == []


async def test_pauses_grow_up_to_the_longest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(asyncio, "sleep", lambda pause: _note(pauses, pause))
    part = FailingPart(8)
    async with _group() as group:
        parts.Parts(lambda _: None).start(group, "watch", part.run)
        await part.runs.wait()
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert "RuntimeError: a bug" in caplog.text


async def _note(pauses: list[float], pause: float) -> None:
    pauses.append(pause)


@contextlib.asynccontextmanager
async def _group() -> AsyncIterator[asyncio.TaskGroup]:
    """A group that ends with the block, whatever still runs in it."""

    class EndError(Exception):
        """The block has ended."""

    try:
        async with asyncio.TaskGroup() as group:
            yield group
            raise EndError
    except* EndError:
        pass
