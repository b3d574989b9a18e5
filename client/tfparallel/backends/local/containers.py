"""The process of a pod. An agent outlives its pod, and runs the next one of its name.

So a restart costs no import of TensorFlow. Runner and agent agree by questions: the agent asks what
follows a run that has ended, and asks again until it gets another run or is to exit.
"""

import contextlib
import dataclasses
import pathlib
import typing

from tfparallel.backends.local import process
from tfparallel_trainer.contract import agents, environment

_WAIT_SECONDS = 0.05

_OF_RUN = (environment.ATTEMPT, environment.REPLICA_ATTEMPT)
"""Variables in which two runs of one container may differ."""


@dataclasses.dataclass(slots=True)
class Container:
    """A process that lives, and the run that it makes."""

    running: process.Process
    launch: process.Launch
    log: typing.TextIO
    run: agents.Run
    """The latest run that the process was given."""
    has_agent: bool
    is_running: bool = True
    """Whether the run has not ended."""
    next_run: agents.Run | None = None
    """The run that the agent gets when it asks next."""
    is_interrupted: bool = False
    """Whether the agent was interrupted, and has not yet said that it knows."""

    @property
    def is_waiting(self) -> bool:
        """Whether an agent waits for a run."""
        return self.has_agent and not self.is_running and self.next_run is None

    @property
    def trainer_id(self) -> int | None:
        """The process id of the trainer, which an agent forks; None: no trainer runs."""
        command_id = self.running.command_id if self.is_running else None
        if command_id is None or not self.has_agent:
            return command_id
        children = pathlib.Path(f"/proc/{command_id}/task/{command_id}/children")
        with contextlib.suppress(OSError):
            return next(map(int, children.read_text(encoding="ascii").split()), None)
        return None

    def fits(self, launch: process.Launch) -> bool:
        """Whether a run with this command and environment differs only in its attempt."""
        return self.is_waiting and _without_run(self.launch) == _without_run(launch)

    def end_run(self) -> None:
        """End the current run. An agent stays, and a run that has not begun does not begin."""
        if self.next_run is not None:
            self.next_run = None
        elif not self.has_agent:
            self.running.terminate()
        elif self.is_running:
            self.is_interrupted = True
            self.running.interrupt()

    def respond(self, end: agents.RunEnd) -> agents.AgentResponse:
        """Answer an agent, once the end of its run is recorded."""
        if end.run != self.run:  # The answer with the newest run did not reach it.
            if self.is_interrupted:
                return agents.AgentResponse(instruction=agents.Instruction.EXIT)
            return agents.AgentResponse(instruction=agents.Instruction.RUN, run=self.run)
        if self.is_running:
            self.is_running = False
            self.running.confirm_response()
        # An interruption that is under way must not meet the next run.
        self.is_interrupted = self.is_interrupted and not end.interrupted
        if self.next_run is None or self.is_interrupted:
            return agents.AgentResponse(instruction=agents.Instruction.WAIT, seconds=_WAIT_SECONDS)
        self.run, self.next_run, self.is_running = self.next_run, None, True
        return agents.AgentResponse(instruction=agents.Instruction.RUN, run=self.run)


def _without_run(launch: process.Launch) -> process.Launch:
    variables = {name: value for name, value in launch.environment.items() if name not in _OF_RUN}
    return dataclasses.replace(launch, environment=variables)
