"""`kopf run` starts the operator: kopf's startup and cleanup begin and end the engine."""

import asyncio
import pathlib
import signal

import pytest

from testing import waiting
from testing.operator import harness, operator_process, places, scripted_server
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources
from tfparallel_operator.local import ports

pytestmark = pytest.mark.usefixtures("processes")

COMMAND = ("-m", "kopf", "run", "-m", "tfparallel_operator.engine.handlers")
LEASE = "operator"


def _variables(place: harness.Place) -> dict[str, str]:
    return {
        "KUBECONFIG": str(place.cluster.kubeconfig),
        "TFPARALLEL_WATCH_NAMESPACES": place.namespace,
        "POD_NAMESPACE": place.namespace,
    }


async def test_a_job_gets_its_pods_and_a_signal_ends_all(
    place: harness.Place, tmp_path: pathlib.Path
) -> None:
    [port] = ports.allocate(1)
    command = (*COMMAND, "-n", place.namespace, "--liveness", f"http://127.0.0.1:{port}/")
    log = tmp_path / "log"
    async with operator_process.running(_variables(place), log, command) as operator:
        await operator.until_ready()
        await place.create_job()
        await place.until_pods("digits-chief-0", "digits-worker-0", "digits-worker-1")
        await place.run_all()
        await place.until_state("Running")
        assert await operator_process.probe(port, "/") == (200, '{"problem": ""}')
        operator.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(waiting.LIMIT_SECONDS):
            assert await operator.process.wait() == 0, operator.log


async def test_several_namespaces_are_followed_and_no_others(
    place: harness.Place, tmp_path: pathlib.Path
) -> None:
    async with places.on(place.cluster) as second, places.on(place.cluster) as third:
        followed = (place.namespace, second.namespace)
        variables = {**_variables(place), "TFPARALLEL_WATCH_NAMESPACES": ",".join(followed)}
        command = (*COMMAND, "-n", followed[0], "-n", followed[1])
        await third.create_job()
        async with operator_process.running(variables, tmp_path / "log", command) as operator:
            await operator.until_ready()
            for each in (place, second):
                await each.create_job()
                await each.until_pods("digits-chief-0", "digits-worker-0", "digits-worker-1")
        assert await third.status() == {}


async def test_a_part_that_fails_ends_kopf_with_it(
    place: harness.Place, tmp_path: pathlib.Path
) -> None:
    variables = {**_variables(place), "TFPARALLEL_LEASE": LEASE, "POD_NAME": "operator-0"}
    path = resources.LEASES.path(place.namespace, LEASE)
    command = (*COMMAND, "-n", place.namespace)
    async with operator_process.running(variables, tmp_path / "log", command) as operator:
        await operator.until_ready()

        async def leads() -> bool:
            listing = await place.api.list(resources.LEASES, place.namespace)
            holders = [each["spec"].get("holderIdentity") for each in listing.items]
            return holders == ["operator-0"]

        await waiting.until_async(leads, "the operator leads")
        stolen = {"holderIdentity": "operator-1", "renewTime": "2026-11-21T10:00:00.000000Z"}
        await place.api.patch(path, {"spec": stolen})
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
