"""The commands and the API server accept and refuse the same manifests."""

import asyncio
import pathlib
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies

from testing.cluster import handle
from testing.operator import generated_jobs, namespaces, objects
from testing.operator.namespaces import Namespace
from tfparallel import manifest
from tfparallel.job_source import source
from tfparallel_operator.api import load, problems
from tfparallel_operator.api_server import client, credentials, errors, resources

EXAMPLES = 300
QUANTITIES = 80


class AdmissionServer:
    """Says what an API server refuses of an object, and stores nothing."""

    def __init__(self, cluster: handle.Cluster) -> None:
        self._runner = asyncio.Runner()
        self._api = client.Client(credentials.find(str(cluster.kubeconfig)))
        self._runner.run(self._api.__aenter__())
        namespace = Namespace(self._api, cluster, namespaces.fresh_name())
        self._runner.run(namespace.create_namespace())
        self.namespace = namespace.name

    def close(self) -> None:
        self._runner.run(self._api.__aexit__(None, None, None))
        self._runner.close()

    def refusal(self, resource: resources.Resource, document: dict[str, Any]) -> str:
        """Return why the API server refuses an object; empty: it takes it."""
        try:
            self._runner.run(self._api.check(resource, self.namespace, document))
        except errors.ApiError as error:
            assert not isinstance(error, errors.Unavailable), document
            return str(error)
        return ""


@pytest.fixture(scope="module")
def server(cluster: handle.Cluster) -> Iterator[AdmissionServer]:
    server = AdmissionServer(cluster)
    yield server
    server.close()


def faults_of(document: dict[str, Any]) -> tuple[problems.Problem, ...]:
    """Return what `validate` says of a job, and see that `run` and the client refuse it too."""
    try:
        load.parse_manifest(document)
    except load.SpecError as error:
        faults = error.located
    else:
        faults = ()
    try:
        manifest.read(document)
    except load.SpecError:
        assert faults
    else:
        assert not faults
    return faults


@pytest.mark.usefixtures("long_computation")
@hypothesis.given(generated_jobs.jobs())
def test_validate_run_and_the_client_have_one_verdict(document: dict[str, Any]) -> None:
    faults = faults_of(document)
    try:
        source.build(document, pathlib.Path("/nowhere"))
    except load.SpecError as error:
        if faults:
            assert set(map(str, faults)) == set(error.problems)
    else:
        assert not faults


@hypothesis.settings(max_examples=EXAMPLES)
@hypothesis.given(document=generated_jobs.jobs())
def test_the_api_server_has_the_same_verdict(
    server: AdmissionServer, document: dict[str, Any]
) -> None:
    metadata = document.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("namespace"), str):
        metadata["namespace"] = server.namespace  # another one is the cluster's to refuse
    faults = faults_of(document)
    refusal = server.refusal(resources.JOBS, document)
    if not refusal and generated_jobs.has_template(document):
        # Only the operator looks into a template, by these same sentences.
        faults = tuple(fault for fault in faults if not is_of_a_template(fault))
    assert bool(faults) == bool(refusal), (faults, refusal)


def is_of_a_template(fault: problems.Problem) -> bool:
    return "template" in fault.location


NUMBERS = strategies.from_regex(r"\A[-+]?[0-9]{0,4}\.?[0-9]{0,3}\Z")
UNITS = strategies.sampled_from(
    ("", *"numkKMGTPE", *(f"{unit}i" for unit in "kKMGTPEm"), "e3", "E-3", "e", "Gb", " Gi", "Gi ")
)
ODD_AMOUNTS: tuple[Any, ...] = (0, 1, -1, 1.5, "", True, None, [], {}, "1e400", "9" * 30)
AMOUNTS: strategies.SearchStrategy[Any] = strategies.one_of(
    strategies.builds("{}{}".format, NUMBERS, UNITS), strategies.sampled_from(ODD_AMOUNTS)
)


@hypothesis.settings(max_examples=QUANTITIES)
@hypothesis.given(request=AMOUNTS, limit=AMOUNTS)
def test_the_api_server_takes_the_same_quantities(
    server: AdmissionServer, request: Any, limit: Any
) -> None:
    """A template's are looked at here, and by the API server as soon as there are pods."""
    resources_of_pod = {"requests": {"memory": request}, "limits": {"memory": limit}}
    job = objects.job(workers=0)
    [container] = job["spec"]["tfReplicaSpecs"]["Chief"]["template"]["spec"]["containers"]
    container["resources"] = resources_of_pod
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "job-chief-0"},
        **job["spec"]["tfReplicaSpecs"]["Chief"]["template"],
    }
    assert bool(faults_of(job)) == bool(server.refusal(resources.PODS, pod))
