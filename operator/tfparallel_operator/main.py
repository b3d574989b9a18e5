"""The command `tfparallel-operator`: the operator's process."""

import asyncio
import gc
import logging
import platform
import secrets
import sys
from asyncio import sslproto

import click

from tfparallel_operator.api import rules, schema, types
from tfparallel_operator.api_server import credentials, errors
from tfparallel_operator.core import gang
from tfparallel_operator.engine import logs, service, settings, watch

_LOG = logging.getLogger(__name__)

_EXPECTED = (credentials.CredentialsError, watch.NotInstalled, errors.ApiError, OSError)
"""What ends the process with a sentence; anything else is a bug and shows its traceback."""

TLS_READ_BYTES = 16 * 1024
"""As much as a TLS record holds.

By asyncio's default (github.com/python/cpython/issues/109534) every connection keeps a buffer of
256 kB, which is 10 MB in all, and every read cuts its answer from another one: the holes that these
leave let the process grow for as long as events come.
"""

YOUNG_ONLY = 1_000_000
"""Threshold that keeps the oldest generation from being searched for garbage.

It holds until all that there is at the start has been seen, which is no garbage, and is then left
out of every search.
"""


def _names(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    return tuple(name for name in (part.strip() for part in value.split(",")) if name)


@click.command()
@click.option(
    "--trainer-image",
    envvar="TFPARALLEL_TRAINER_IMAGE",
    required=True,
    help="Image of replicas that have no template.",
)
@click.option(
    "--trainer-pull-secrets",
    envvar="TFPARALLEL_TRAINER_PULL_SECRETS",
    default="",
    callback=_names,
    help="Comma-separated Secrets that pull that image, in the namespaces of jobs.",
)
@click.option(
    "--watch-namespaces",
    envvar="TFPARALLEL_WATCH_NAMESPACES",
    default="",
    callback=_names,
    help="Comma-separated namespaces whose jobs the operator runs; empty: all.",
)
@click.option("--namespace", envvar="POD_NAMESPACE", help="The operator's own namespace.")
@click.option(
    "--instance",
    envvar="POD_NAME",
    help="Name of this operator, unique among those that run: its pod's. Absent: a random name.",
)
@click.option(
    "--lease",
    envvar="TFPARALLEL_LEASE",
    default="",
    help="Lease by which several operators elect a leader; empty: this operator is the only one.",
)
@click.option(
    "--lease-seconds",
    envvar="TFPARALLEL_LEASE_SECONDS",
    type=click.IntRange(min=3),
    default=15,
    show_default=True,
    help="Seconds without a renewal after which another operator becomes the leader.",
)
@click.option(
    "--progress-host",
    envvar="TFPARALLEL_PROGRESS_HOST",
    default="",
    help="Host name by which pods reach the progress endpoint; empty: none.",
)
@click.option("--progress-port", envvar="TFPARALLEL_PROGRESS_PORT", default=8443, show_default=True)
@click.option("--health-port", envvar="TFPARALLEL_HEALTH_PORT", default=8080, show_default=True)
@click.option(
    "--tls-secret",
    envvar="TFPARALLEL_TLS_SECRET",
    default="tfparallel-operator-tls",
    show_default=True,
    help="Secret that keeps the progress endpoint's certificates.",
)
@click.option(
    "--workers",
    envvar="TFPARALLEL_WORKERS",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Jobs that the operator reconciles at the same time.",
)
@click.option(
    "--log-format",
    envvar="TFPARALLEL_LOG_FORMAT",
    type=click.Choice([form.value for form in settings.LogFormat]),
    default=settings.LogFormat.JSON.value,
    show_default=True,
)
@click.option(
    "--gang-scheduler",
    envvar="TFPARALLEL_GANG_SCHEDULER",
    type=click.Choice([one.value for one in types.GangScheduler]),
    help="Who starts together the pods of jobs that have runPolicy.schedulingPolicy and name no"
    " gang scheduler; without it such jobs are refused.",
)
@click.option(
    "--coscheduling-name",
    envvar="TFPARALLEL_COSCHEDULING_NAME",
    default=gang.Installation().coscheduling_name,
    show_default=True,
    help="Name of the scheduler that has the plugin Coscheduling.",
)
@click.option(
    "--kubeconfig",
    envvar="KUBECONFIG",
    help="Kubeconfig for running outside of a cluster; without it the service account is used.",
)
def main(
    trainer_image: str,
    trainer_pull_secrets: tuple[str, ...],
    watch_namespaces: tuple[str, ...],
    namespace: str | None,
    instance: str | None,
    lease: str,
    lease_seconds: int,
    progress_host: str,
    progress_port: int,
    health_port: int,
    tls_secret: str,
    workers: int,
    log_format: str,
    gang_scheduler: str | None,
    coscheduling_name: str,
    kubeconfig: str | None,
) -> None:
    """Run TFParallelJobs on a Kubernetes cluster."""
    options = settings.Settings(
        trainer_image=trainer_image,
        trainer_pull_secrets=trainer_pull_secrets,
        watch_namespaces=watch_namespaces,
        namespace=namespace or credentials.own_namespace(),
        instance=instance or f"{platform.node()}-{secrets.token_hex(4)}",
        lease=lease,
        lease_seconds=lease_seconds,
        progress_host=progress_host,
        progress_port=progress_port,
        health_port=health_port,
        tls_secret=tls_secret,
        workers=workers,
        log_format=settings.LogFormat(log_format),
        gangs=gang.Installation(
            types.GangScheduler(gang_scheduler) if gang_scheduler else None, coscheduling_name
        ),
        kubeconfig=kubeconfig,
    )
    logs.configure(options.log_format)
    sslproto.SSLProtocol.max_size = TLS_READ_BYTES
    # Neither this nor a search for garbage in what stays for ever may hold up the event loop.
    rules.compile_all(schema.job_schema())
    gc.freeze()
    sys.exit(asyncio.run(_run(options)))


async def _run(options: settings.Settings) -> int:
    status = 0
    thresholds = gc.get_threshold()
    gc.set_threshold(*thresholds[:2], YOUNG_ONLY)

    def settle() -> None:
        gc.freeze()
        gc.set_threshold(*thresholds)

    try:
        await service.run(options, asyncio.Event(), listed=settle)
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
