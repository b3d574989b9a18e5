"""`kopf run` starts the operator: kopf's startup and cleanup begin and end the engine."""

import asyncio
import pathlib
import signal

import pytest

from testing import waiting
from testing.operator import namespaces, operator_process, scripted_server
from testing.operator.namespaces import Namespace
from tfparallel.backends.local import ports
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources

pytestmark = pytest.mark.usefixtures("processes")

COMMAND = ("-m", "kopf", "run", "-m", "tfparallel_operator.engine.handlers")
LEASE = "operator"


async def test_a_job_gets_its_pods_and_a_signal_ends_all(
    namespace: Namespace, tmp_path: pathlib.Path
) -> None:
    [port] = ports.allocate(1)
    command = (*COMMAND, "-n", namespace.name, "--liveness", f"http://127.0.0.1:{port}/")
    log = tmp_path / "log"
    async with operator_process.running(namespace.variables, log, command) as operator:
        await operator.until_ready()
        await namespace.create_job()
        await namespace.run_pods("digits-chief-0", "digits-worker-0", "digits-worker-1")
        assert await operator_process.probe(port, "/") == (200, '{"problem": ""}')
        operator.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(waiting.LIMIT_SECONDS):
            assert await operator.process.wait() == 0, operator.log


async def test_several_namespaces_are_followed_and_no_others(
    namespace: Namespace, tmp_path: pathlib.Path
) -> None:
    async with (
        namespaces.open_in(namespace.cluster) as second,
        namespaces.open_in(namespace.cluster) as third,
    ):
        followed = (namespace.name, second.name)
        variables = {**namespace.variables, "TFPARALLEL_WATCH_NAMESPACES": ",".join(followed)}
        command = (*COMMAND, "-n", followed[0], "-n", followed[1])
        await third.create_job()
        async with operator_process.running(variables, tmp_path / "log", command) as operator:
            await operator.until_ready()
            for watched in (namespace, second):
                await watched.create_job()
                await watched.until_pods("digits-chief-0", "digits-worker-0", "digits-worker-1")
        assert await third.status() == {}


async def test_a_part_that_fails_ends_kopf_with_it(
    namespace: Namespace, tmp_path: pathlib.Path
) -> None:
    variables = {**namespace.variables, "TFPARALLEL_LEASE": LEASE, "POD_NAME": "operator-0"}
    path = resources.LEASES.path(namespace.name, LEASE)
    command = (*COMMAND, "-n", namespace.name)
    async with operator_process.running(variables, tmp_path / "log", command) as operator:
        await operator.until_ready()

        async def leads() -> bool:
            listing = await namespace.api.list(resources.LEASES, namespace.name)
            holders = [holder["spec"].get("holderIdentity") for holder in listing.items]
            return holders == ["operator-0"]

        await waiting.until_async(leads, "the operator leads")
        stolen = {"holderIdentity": "operator-1", "renewTime": "2026-11-21T10:00:00.000000Z"}
        await namespace.api.patch(path, {"spec": stolen})
        async with asyncio.timeout(waiting.LIMIT_SECONDS):
            assert await operator.process.wait() == 1
        assert "Lease operator is held by operator-1 now, not by us" in operator.log


@pytest.mark.parametrize(
    ("variables", "options", "sentence"),
    [
        ({}, ("-A",), f"does not know {names.PLURAL}.{names.GROUP}: install the custom"),
        (
            {"TFPARALLEL_WATCH_NAMESPACES": "team"},
            ("-A",),
            "TFPARALLEL_WATCH_NAMESPACES is team. Give kopf -n for each of them",
        ),
        ({}, ("-n", "team"), "TFPARALLEL_WATCH_NAMESPACES is empty: all namespaces"),
        ({"TFPARALLEL_WORKERS": "0"}, ("-A",), "0 is not in the range x>=1"),
    ],
)
async def test_what_it_cannot_start_with_is_a_sentence(
    variables: dict[str, str], options: tuple[str, ...], sentence: str, tmp_path: pathlib.Path
) -> None:
    async with scripted_server.serving() as server:
        server.script = [scripted_server.without(resources.JOBS)]
        kubeconfig = operator_process.write_kubeconfig(server.url, tmp_path)
        variables = {**variables, "KUBECONFIG": str(kubeconfig)}
        command = (*COMMAND, *options)
        async with operator_process.running(variables, tmp_path / "log", command) as operator:
            async with asyncio.timeout(operator_process.START_SECONDS):
                assert await operator.process.wait() == 1
            assert sentence in operator.log
