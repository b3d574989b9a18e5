"""What every part of a run works with: settings, the user's module, and this process."""

import dataclasses
from collections.abc import Callable, Mapping

from tfparallel_trainer import errors, user
from tfparallel_trainer.runtime import settings
from tfparallel_trainer.runtime.lifecycle import stall, termination
from tfparallel_trainer.runtime.reporting import console


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """A run as this process sees it."""

    settings: settings.Settings
    module: user.Module
    out: console.Console
    stop: termination.Termination
    give_up: Callable[[errors.TrainerError], None]
    """Ends the process from any thread."""
    watch: stall.Watch
    """Takes this process's signs of life."""
    started: float
    """time.monotonic() at the start of the process."""
    devices: int | None = None
    """How many devices this process has, where it has joined its peers before."""
    script: bool = False
    """Whether the user's script calls, which keeps the trained model itself."""
    logs: bool = True
    """Whether the chief writes records into the output directory."""
    facts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """What else must be the same in all processes."""
