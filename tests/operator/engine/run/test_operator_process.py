"""The operator's process: how it starts, is killed, and ends."""

import asyncio
import json
import pathlib
import re
import signal

import pytest
from click import testing

from testing import waiting
from testing.operator import operator_process, scripted_server
from testing.operator.namespaces import Namespace
from tfparallel_operator import main
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources

pytestmark = pytest.mark.usefixtures("processes")


ALL = ("digits-chief-0", "digits-worker-0", "digits-worker-1")
END_SECONDS = 30
"""The grace that the Deployment gives; it takes one or two on a quiet machine."""


async def test_a_killed_operator_is_replaced_and_the_job_ends_as_if_nothing_had_happened(
    namespace: Namespace, tmp_path: pathlib.Path
) -> None:
    log = tmp_path / "operator.log"
    async with operator_process.running(namespace.variables, log) as first:
        await first.until_ready()
        await namespace.create_job()
        await namespace.run_pods(*ALL)
        first.process.kill()
        await first.process.wait()
    uids = {pod["metadata"]["uid"] for pod in (await namespace.pods()).values()}
    await namespace.end("digits-worker-1", 1)
    async with operator_process.running(namespace.variables, log) as second:
        await second.until_ready()
        pods = await namespace.until_pods(*ALL, attempt=2)
        assert uids.isdisjoint(pod["metadata"]["uid"] for pod in pods.values())
        await namespace.run_all()
        await namespace.until_state("Running")
        await namespace.end("digits-chief-0", 0)
        status = await namespace.until_state("Succeeded")
    assert status["attempt"] == 2
    assert status["restarts"] == {"failure": 1, "disruption": 0}


async def test_asked_to_end_it_ends_within_seconds_and_with_success(
    namespace: Namespace, tmp_path: pathlib.Path
) -> None:
    log = tmp_path / "operator.log"
    async with operator_process.running(namespace.variables, log) as operator:
        await operator.until_ready()
        assert await operator.probe("/healthz") == (200, "ok")
        await namespace.create_job()
        await namespace.until_pods(*ALL)
        await waiting.until_in_loop(
            lambda: operator.log, "a line about the job", when=lambda log: '"digits"' in log
        )
        operator.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(END_SECONDS):
            assert await operator.process.wait() == 0
        lines = [json.loads(line) for line in operator.log.splitlines()]
    assert lines[-1]["message"] == "asked to end"
    about = [line for line in lines if line.get("job") == "digits"]
    assert about
    assert about[0]["namespace"] == namespace.name
    assert about[0]["attempt"] == 1
    assert all(re.fullmatch("[0-9a-f]{8}", line["reconcile"]) for line in about)
    assert {line["level"] for line in lines} == {"info"}


async def test_without_the_custom_resource_it_says_what_to_install(tmp_path: pathlib.Path) -> None:
    async with scripted_server.serving() as server:
        server.script = [scripted_server.without(resources.JOBS)]
        arguments = {"KUBECONFIG": str(operator_process.write_kubeconfig(server.url, tmp_path))}
        async with operator_process.running(arguments, tmp_path / "log") as operator:
            async with asyncio.timeout(operator_process.START_SECONDS):
                assert await operator.process.wait() == 1
            [line] = operator.log.splitlines()
    assert f"does not know {names.PLURAL}.{names.GROUP}: install the custom" in line


async def test_metrics_can_be_switched_off(tmp_path: pathlib.Path) -> None:
    async with scripted_server.serving() as server:
        server.script = [scripted_server.text("starting", 503)]
        kubeconfig = operator_process.write_kubeconfig(server.url, tmp_path)
        arguments = {"KUBECONFIG": str(kubeconfig), "TFPARALLEL_METRICS": "false"}
        async with operator_process.running(arguments, tmp_path / "log") as operator:

            async def answers() -> bool:
                return (await operator.probe("/healthz"))[0] == 200

            await waiting.until_async(answers, "liveness answers", operator_process.START_SECONDS)
            assert (await operator.probe("/metrics"))[0] == 404


async def test_while_the_api_server_does_not_answer_it_lives_but_is_not_ready(
    tmp_path: pathlib.Path,
) -> None:
    async with scripted_server.serving() as server:
        server.script = [scripted_server.text("starting", 503)]
        arguments = {"KUBECONFIG": str(operator_process.write_kubeconfig(server.url, tmp_path))}
        async with operator_process.running(arguments, tmp_path / "log") as operator:

            async def alive() -> bool:
                return (await operator.probe("/healthz"))[0] == 200

            await waiting.until_async(alive, "liveness answers", operator_process.START_SECONDS)
            status, reason = await operator.probe("/readyz")
            assert (status, reason) == (503, "the children of the jobs have not been listed yet")
            operator.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(END_SECONDS):
                assert await operator.process.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"KUBECONFIG": "/nowhere/kubeconfig"}, "kubeconfig '/nowhere/kubeconfig' cannot be used"),
        ({}, "no way to the API server: KUBERNETES_SERVICE_HOST is None"),
    ],
)
async def test_what_it_cannot_start_with_is_one_sentence(
    arguments: dict[str, str], sentence: str, tmp_path: pathlib.Path
) -> None:
    async with operator_process.running(arguments, tmp_path / "log") as operator:
        async with asyncio.timeout(operator_process.START_SECONDS):
            assert await operator.process.wait() in (1, 2)
        assert sentence in operator.log
        assert "Traceback" not in operator.log


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"TFPARALLEL_WORKERS": "0"}, "(env var: 'TFPARALLEL_WORKERS'): 0 is not in the range"),
        ({"TFPARALLEL_LOG_FORMAT": "xml"}, "'xml' is not one of 'json', 'text'"),
        ({"TFPARALLEL_TRAINER_IMAGE": ""}, "Missing option '--trainer-image'"),
        ({"TFPARALLEL_METRICS": "maybe"}, "'maybe' is not a valid boolean"),
        ({"TFPARALLEL_POD_DEFAULTS": "{"}, "'{' is no JSON: "),
        ({"TFPARALLEL_POD_DEFAULTS": '{"tolerations": []}'}, "write an object with metadata and"),
        ({"TFPARALLEL_RESTRICTIONS": "{"}, "write an object with serviceAccounts"),
        ({"TFPARALLEL_RESTRICTIONS": "[]"}, "write an object with serviceAccounts"),
        (
            {"TFPARALLEL_RESTRICTIONS": '{"hostaccess": "Forbidden"}'},
            "does not know would not hold",
        ),
        (
            {"TFPARALLEL_RESTRICTIONS": '{"hostAccess": "forbidden"}'},
            "write an object with service",
        ),
        ({"TFPARALLEL_RESTRICTIONS": '{"serviceAccounts": "a"}'}, "serviceAccounts is no list"),
        (
            {"TFPARALLEL_RESTRICTIONS": '{"secrets": {"labels": {}}}'},
            "does not know would not hold",
        ),
        (
            {
                "TFPARALLEL_POD_DEFAULTS": '{"spec": {"hostPID": true}}',
                "TFPARALLEL_RESTRICTIONS": '{"hostAccess": "Forbidden"}',
            },
            "jobs.podDefaults.spec.hostPID is hostPID, and jobs may not reach into their nodes",
        ),
    ],
)
def test_options_that_cannot_be_are_refused(variables: dict[str, str], sentence: str) -> None:
    variables = {"TFPARALLEL_TRAINER_IMAGE": "trainer:test", **variables}
    result = testing.CliRunner().invoke(main.main, env=variables)
    assert result.exit_code == 2
    assert sentence in result.output
