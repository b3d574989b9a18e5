"""What a container answers its agent, without processes."""

import dataclasses
import io
import pathlib
import typing

import pytest

from tfparallel.backends.local import containers, process
from tfparallel_trainer.contract import agents

FIRST, SECOND = (agents.Run(attempt=number, replica_attempt=0) for number in (1, 2))
LAUNCH = process.Launch(("python",), {"TFPARALLEL_ATTEMPT": "1", "A": "b"}, pathlib.Path("/"), 1.0)


class Recorded:
    """A process that records its orders."""

    def __init__(self) -> None:
        self.orders: list[str] = []

    def __getattr__(self, name: str) -> typing.Callable[[], None]:
        return lambda: self.orders.append(name)


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
def container(recorded: Recorded) -> containers.Container:
    running = typing.cast("process.Process", recorded)
    return containers.Container(running, LAUNCH, io.StringIO(), FIRST, has_agent=True)


def ended(run: agents.Run = FIRST, *, interrupted: bool = False) -> agents.RunEnd:
    return agents.RunEnd(run=run, code=75, interrupted=interrupted)


def test_an_agent_waits_until_there_is_a_run(container: containers.Container) -> None:
    assert not container.is_waiting
    assert container.respond(ended()).instruction is agents.Instruction.WAIT
    assert container.is_waiting
    container.next_run = SECOND
    assert not container.is_waiting
    assert container.respond(ended()) == agents.AgentResponse(
        instruction=agents.Instruction.RUN, run=SECOND
    )
    assert (container.run, container.is_running, container.next_run) == (SECOND, True, None)


def test_an_answer_that_was_lost_is_given_again(container: containers.Container) -> None:
    container.respond(ended())
    container.next_run = SECOND
    first, second = container.respond(ended()), container.respond(ended())
    assert first == second
    assert container.is_running


def test_a_run_does_not_begin_while_an_interruption_is_under_way(
    container: containers.Container, recorded: Recorded
) -> None:
    container.end_run()
    assert recorded.orders == ["interrupt"]
    container.respond(ended())  # It has ended by itself, before the signal came.
    container.next_run = SECOND
    assert container.respond(ended()).instruction is agents.Instruction.WAIT
    assert container.respond(ended(interrupted=True)).run == SECOND


def test_a_run_that_has_not_begun_never_begins(
    container: containers.Container, recorded: Recorded
) -> None:
    container.respond(ended())
    container.next_run = SECOND
    container.end_run()
    assert container.respond(ended()).instruction is agents.Instruction.WAIT
    assert recorded.orders == ["confirm_response"]


def test_a_run_whose_order_was_lost_and_that_is_to_end_does_not_begin(
    container: containers.Container,
) -> None:
    container.respond(ended())
    container.next_run = SECOND
    container.respond(ended())
    container.end_run()
    assert container.respond(ended(interrupted=True)).instruction is agents.Instruction.EXIT


@pytest.mark.parametrize(
    ("variables", "fits"),
    [
        ({"TFPARALLEL_ATTEMPT": "2", "TFPARALLEL_REPLICA_ATTEMPT": "1", "A": "b"}, True),
        ({"TFPARALLEL_ATTEMPT": "2", "A": "c"}, False),
        ({"TFPARALLEL_ATTEMPT": "2"}, False),
    ],
)
def test_an_agent_takes_only_a_run_of_its_own_command_and_environment(
    container: containers.Container, variables: dict[str, str], fits: bool
) -> None:
    launch = dataclasses.replace(LAUNCH, environment=variables)
    assert not container.fits(launch)  # It runs.
    container.respond(ended())
    assert container.fits(launch) is fits
    assert not container.fits(dataclasses.replace(launch, folder=pathlib.Path("/tmp")))


def test_without_an_agent_the_process_itself_ends(recorded: Recorded) -> None:
    running = typing.cast("process.Process", recorded)
    container = containers.Container(running, LAUNCH, io.StringIO(), FIRST, has_agent=False)
    container.end_run()
    assert recorded.orders == ["terminate"]
    assert not container.is_waiting
