"""The operator as kopf runs it: `kopf run -m tfparallel_operator.engine.handlers`.

kopf handles the signals of the process, logs in and watches jobs. Its startup and cleanup handlers
start and stop the engine, which does everything else. With `kopf run`, the engine's settings come
from the environment variables of the command `tfparallel-operator`.
"""

import asyncio
import signal
from typing import Any

import kopf

from tfparallel_operator.api import names
from tfparallel_operator.api_server import client, credentials
from tfparallel_operator.engine.observe import watch_session
from tfparallel_operator.engine.run.engine import Engine
from tfparallel_operator.engine.run.settings import Settings

LOGIN_PAUSE_SECONDS = 2.0
"""Pause before kopf gets another session after the API server has refused its last one."""


@kopf.on.startup(errors=kopf.ErrorsMode.PERMANENT)
async def start(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
    """Start the engine. kopf starts to watch after the first lists."""
    _configure(settings)
    if "engine" not in memo:
        memo.engine = _build_engine()
    _check_scope(settings.peering.clusterwide, memo.engine.settings.watch_namespaces)
    try:
        await memo.engine.start()
    except BaseException:
        if "stop" in memo:  # Else kopf waits 5 s for its own task that waits for this flag.
            memo.stop(None)
        raise
    memo.engine.task.add_done_callback(memo.get("stop", _end_process))


@kopf.on.cleanup(errors=kopf.ErrorsMode.PERMANENT)
async def end(memo: kopf.Memo, **_: Any) -> None:
    """Stop the engine after kopf's watch. If a part of it has failed, kopf fails, too."""
    try:
        await memo.engine.stop()
    finally:
        if "session" in memo:  # kopf closes it only after a cleanup without errors.
            await memo.session.close()


@kopf.on.login()
async def login(memo: kopf.Memo, **_: Any) -> kopf.AiohttpSession:
    """Give kopf its own session, which it closes."""
    if "session" in memo:  # The last one was refused; kopf itself does not pause.
        await asyncio.sleep(LOGIN_PAUSE_SECONDS)
    access: credentials.Access = memo.engine.api.access
    answers = watch_session.answers(memo.engine.list_jobs)
    memo.session = access.session(memo.engine.history.resume, answers=answers)
    return kopf.AiohttpSession(server=access.server, aiohttp_session=memo.session)


@kopf.on.probe(id="problem")
async def check(memo: kopf.Memo, **_: Any) -> str:
    """Answer `kopf run --liveness`; a Deployment asks /healthz and /readyz instead."""
    problem: str = memo.engine.problem()
    if problem:
        raise kopf.PermanentError(problem)
    return problem


@kopf.on.event(names.GROUP, names.VERSION, names.PLURAL)
async def take_job(event: kopf.RawEvent, namespace: str | None, memo: kopf.Memo, **_: Any) -> None:
    """Store a job and queue it; write nothing."""
    if namespace in (memo.engine.settings.watch_namespaces or (namespace,)):
        memo.engine.jobs.apply_event(event["type"], event["object"])  # kopf logs what this raises.


async def run(parts: Engine, stop: asyncio.Event) -> None:
    """Run kopf with these handlers until a signal, `stop`, or the failure of a part.

    Raises:
        ExceptionGroup: the parts of the engine that failed.
        Exception: kopf has failed.
    """
    namespaces = parts.settings.watch_namespaces
    try:
        await kopf.operator(
            memo=kopf.Memo(engine=parts, stop=lambda _: stop.set()),
            stop_flag=stop,
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
        )
    except Exception as error:
        if isinstance(error.__cause__, ExceptionGroup):
            raise error.__cause__ from None  # kopf says no more than that a handler has failed.
        raise


def _build_engine() -> Engine:
    """Return an engine with the settings of the environment, for `kopf run`.

    Raises:
        click.UsageError: a variable is missing or invalid.
        credentials.CredentialsError: no credentials for the API server were found.
    """
    return Engine(Settings.from_environment())


def _check_scope(clusterwide: bool, namespaces: tuple[str, ...]) -> None:
    """Refuse to start if `kopf run` and the engine watch different namespaces."""
    if clusterwide == bool(namespaces):
        shown = ",".join(namespaces) or "empty: all namespaces"
        raise kopf.PermanentError(
            f"kopf and the engine follow different namespaces: TFPARALLEL_WATCH_NAMESPACES is "
            f"{shown}. Give kopf -n for each of them, or -A for all"
        )


def _end_process(task: asyncio.Task[None]) -> None:
    """Stop kopf. `kopf run` has no other way."""
    if not task.cancelled():
        signal.raise_signal(signal.SIGTERM)


class _NoDifferences(kopf.MultiDiffBaseStorage):
    """Keeps no copy of a job to compare. `take_job` needs each version, and the copies take a tenth
    of the operator's CPU time."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence({})


def _configure(settings: kopf.OperatorSettings) -> None:
    """Configure kopf to reconnect silent streams and to write nothing."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    # kopf removes its own finalizer, which another operator may have put on a job.
    settings.persistence.finalizer = f"{names.GROUP}/unused"
    settings.persistence.diffbase_storage = _NoDifferences([])
    settings.persistence.progress_storage = kopf.MultiProgressStorage([])
    settings.watching.connect_timeout = credentials.CONNECT_TIMEOUT_SECONDS
    settings.watching.server_timeout = client.WATCH_SECONDS[1]
    settings.watching.inactivity_timeout = client.WATCH_SILENCE_SECONDS
    settings.watching.chunk_size = 1  # The session lists by itself.
    settings.queueing.idle_timeout = 0.5
    # kopf warns about jobs whose events it has not handled by then, and still handles them.
    settings.queueing.exit_timeout = 10.0
    settings.networking.request_timeout = credentials.READ_TIMEOUT_SECONDS
    # If the API server is away for two minutes, the process exits, and the kubelet restarts it.
    settings.networking.error_backoffs = (1, 2, 5, *[10] * 12)
    # The kubelet kills a process that takes too long to exit, so kopf must not.
    settings.process.ultimate_exiting_timeout = None
