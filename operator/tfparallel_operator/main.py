"""The command `tfparallel-operator`: the operator's process."""

import asyncio
import logging
import sys
from asyncio import sslproto
from collections.abc import Awaitable, Callable
from typing import Any

import click
import kopf

from tfparallel_operator.api import rules, schema
from tfparallel_operator.api_server import credentials, errors
from tfparallel_operator.engine import handlers
from tfparallel_operator.engine.observe import sweeper
from tfparallel_operator.engine.run import engine, garbage, settings
from tfparallel_operator.engine.telemetry import logs

_LOG = logging.getLogger(__name__)

_EXPECTED = (credentials.CredentialsError, sweeper.NotInstalled, errors.ApiError, OSError)
"""Errors that end the process with a sentence. Any other is a bug and shows its traceback."""

TLS_READ_BYTES = 16 * 1024
"""Size of a TLS record.

By asyncio's default (github.com/python/cpython/issues/109534) each connection keeps a buffer of
256 kB, which is 10 MB in all. Each read cuts its answer from another buffer, and the holes let the
process grow as long as events come.
"""


@click.command(params=settings.options())
def main(**values: Any) -> None:
    """Run TFParallelJobs on a Kubernetes cluster."""
    options = settings.build(values)
    logs.configure(options.log_format)
    sslproto.SSLProtocol.max_size = TLS_READ_BYTES
    # Neither this nor a collection among objects that live forever may block the event loop later.
    rules.compile_all(schema.job_schema())
    kopf.on.startup()(_spare_listed_objects())
    sys.exit(asyncio.run(_run(options)))


def _spare_listed_objects() -> Callable[..., Awaitable[None]]:
    """Return the end of kopf's startup, which lists everything that later collections skip."""
    settle = garbage.spare_listed_objects()

    async def end_startup(**_: Any) -> None:  # Not in a thread: no signal may come before it ends.
        settle()

    return end_startup


async def _run(options: settings.Settings) -> int:
    status = 0
    try:
        await handlers.run(engine.Engine(options), asyncio.Event())
        garbage.stop_collecting()
    except* _EXPECTED as group:
        status = 1
        for error in _leaves(group):
            _LOG.error("%s", error)
    except* Exception:
        status = 1
        _LOG.exception("the operator ends: one of its parts failed")
    return status


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return leaves


if __name__ == "__main__":
    main()
