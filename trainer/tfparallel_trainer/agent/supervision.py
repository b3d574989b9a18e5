"""Forks a trainer for each attempt from a process that has imported TensorFlow.

A restart then costs no new container and no import. TensorFlow's runtime is untouched here: this
process opens no device and runs no operation. It starts no thread but those of OpenBLAS, which end
before a fork and begin again after it. It therefore asks no bucket either: the threads of a
bucket's client would be missing in the trainer, which would wait for them forever.
"""

import dataclasses
import os
import pathlib
import time
from collections.abc import Callable, Mapping, MutableMapping

from tfparallel_trainer import process_settings
from tfparallel_trainer.agent import child, orders
from tfparallel_trainer.contract import agents, environment, exits
from tfparallel_trainer.lifecycle import termination
from tfparallel_trainer.loop import preflight
from tfparallel_trainer.process_settings import Settings
from tfparallel_trainer.reporting import console, results
from tfparallel_trainer.storage import folder

_OOM_EVENTS = pathlib.Path("/sys/fs/cgroup/memory.events")

_FINAL = frozenset({exits.Exit.OUT_OF_MEMORY, *(code for code in exits.Exit if not code.retryable)})
"""Exit codes after which the container ends: another run would end the same, here at least."""

_FILES = 4
"""Files in memory: two for copies of the replica's own state, two for those of another replica."""


@dataclasses.dataclass(frozen=True, slots=True)
class AttemptStart:
    """What a trainer gets from its agent."""

    start_time: float
    """When the attempt began, by time.monotonic()."""
    memory_files: tuple[int, ...] = ()
    """Open files in the agent's memory, where trainers leave copies of the state for the next. See
    `memory_copies`."""


def supervise(
    env: MutableMapping[str, str], preload: Callable[[Settings], None], started: float
) -> AttemptStart:
    """Fork a trainer for each attempt, and end this process after the last one.

    It returns in each trainer. Where no agent helps, because the settings are wrong or the machine
    has no room for another process, it returns in this process, which then trains itself.

    Args:
        env: the environment; a trainer gets the number of its attempt there.
        preload: imports all that a trainer with some settings uses, and starts nothing.
        started: when this process began.
    """
    settings = _read_settings(env)
    target = None if settings is None else process_settings.agent_target(env)
    if settings is None or target is None:
        return AttemptStart(started)
    out = console.Console(settings.cluster.task.name)
    try:
        preload(settings)
    except Exception:
        return AttemptStart(started)  # The trainer meets the same error, and reports it.
    child.prepare()
    working_folder, run, memory_files = pathlib.Path.cwd(), _first_run(env), _create_files()
    while True:
        os.chdir(working_folder)  # Somebody may have emptied and recreated it.
        requests, oom_kills = child.Requests(), _count_oom_kills()
        try:
            pid = child.fork()
        except OSError as error:
            child.release()
            out.say(f"warning: no process can be forked ({error.strerror}), so this one trains")
            return AttemptStart(started)
        if pid == 0:
            return AttemptStart(started, memory_files)
        code = child.follow(pid, requests, float(settings.grace_seconds))
        is_over = requests.to_end or code in _FINAL or _count_oom_kills() > oom_kills
        next_run = None
        if not is_over:
            end = agents.RunEnd(run=run, code=code, message=_read_message(env))
            next_run = orders.await_run(target, end, requests, out.say)
        if next_run is None:
            termination.end(code)
        run, started = next_run, time.monotonic()
        env[environment.ATTEMPT] = str(run.attempt)
        _forget_message(env)


def _read_settings(env: Mapping[str, str]) -> Settings | None:
    """Return the settings of a job that can train; None: the trainer itself says why not."""
    try:
        settings = process_settings.read(env)
        preflight.check_settings(settings)
        is_local = isinstance(settings.results, folder.Folder)
        return None if is_local and results.end_of(settings) is not None else settings
    except Exception:
        return None


def _first_run(env: Mapping[str, str]) -> agents.Run:
    attempt = process_settings.positive(env, environment.ATTEMPT) or 1
    return agents.Run(
        attempt=attempt, replica_attempt=int(env.get(environment.REPLICA_ATTEMPT, "0"))
    )


def _create_files() -> tuple[int, ...]:
    """Create empty files in memory: no limit of /dev/shm, and nothing to remove at the end."""
    try:
        return tuple(os.memfd_create(f"tfparallel-state-{number}") for number in range(_FILES))
    except OSError:  # The kernel or a sandbox does not let it.
        return ()


def _read_message(env: Mapping[str, str]) -> str:
    """Return what the trainer wrote about its end, as the kubelet reads it."""
    try:
        path = pathlib.Path(env.get(environment.FAILURE_FILE, ""))
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text[: agents.MAX_MESSAGE_LETTERS]


def _forget_message(env: Mapping[str, str]) -> None:
    """Empty the file, so that the next run ends with a message of its own."""
    try:
        with pathlib.Path(env.get(environment.FAILURE_FILE, "")).open("r+b") as file:
            file.truncate()
    except OSError:  # It has left none.
        return


def _count_oom_kills() -> int:
    """Return how often the kernel has killed a process of this container for memory.

    The container then ends: its end, unlike an exit code, says that memory was the reason.
    """
    try:
        lines = _OOM_EVENTS.read_text(encoding="ascii").splitlines()
        return int(dict(line.split() for line in lines)["oom_kill"])
    except (OSError, KeyError, ValueError):  # no cgroup v2
        return 0
