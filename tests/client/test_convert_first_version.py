"""`tfparallel convert` on the first version of TFJob, with its list of roles."""

import pathlib
from typing import Any

import pytest
import yaml

from testing.operator import tfjobs as jobs
from tfparallel.convert import first_version, tfjob
from tfparallel.convert.tfjob_differences import TFJobDifference
from tfparallel_operator.api import load, types

FILE = pathlib.Path(__file__).parent / "tfjobs/first-version.yaml"


def first(change: jobs.Change = lambda _: None) -> jobs.Document:
    document: jobs.Document = yaml.safe_load(FILE.read_text())
    change(document)
    return document


def entries(document: jobs.Document) -> list[Any]:
    listed: list[Any] = document["spec"]["replicaSpecs"]
    return listed


@pytest.mark.parametrize("api_version", first_version.API_VERSIONS)
def test_the_list_becomes_a_map_of_roles(api_version: str) -> None:
    converted = jobs.convert(first(lambda d: d.update(apiVersion=api_version)))
    assert TFJobDifference.REPLICA_LIST in jobs.differences(converted)
    job = load.parse_job(converted.document)
    replicas = {role: spec.replicas for role, spec in job.spec.tf_replica_specs.items()}
    assert replicas == {types.Role.MASTER: 1, types.Role.WORKER: 2, types.Role.PS: 1}
    policies = {spec.restart_policy for spec in job.spec.tf_replica_specs.values()}
    assert policies == {types.RestartPolicy.ON_FAILURE}
    assert job.spec.run_policy.backoff_limit == tfjob.UNLIMITED
    assert job.spec.run_policy.clean_pod_policy is types.CleanPodPolicy.NONE
    template = job.spec.tf_replica_specs[types.Role.WORKER].template
    assert template is not None
    assert "restartPolicy" not in template["spec"]


def test_an_entry_without_words_is_a_master_that_always_runs_again() -> None:
    def bare(document: jobs.Document) -> None:
        del entries(document)[1:]
        del entries(document)[0]["tfReplicaType"]
        del entries(document)[0]["template"]["spec"]["restartPolicy"]

    roles = jobs.roles(jobs.convert(first(bare)).document)
    assert roles["Master"]["restartPolicy"] == "Always"
    roles = jobs.roles(jobs.convert(first(bare), write_defaults=False).document)
    assert "restartPolicy" not in roles["Master"]


def test_a_port_of_tensorflow_is_the_one_of_its_container() -> None:
    document = first(lambda d: entries(d)[1].update(tfPort=3333))
    [container] = jobs.pod(jobs.convert(document).document)["containers"]
    assert container["ports"] == [{"name": "tfjob-port", "containerPort": 3333}]


@pytest.mark.parametrize(
    ("name", "index", "differs"), [("MASTER", 0, False), ("WORKER", 0, True), ("MASTER", 1, True)]
)
def test_another_replica_that_decides_about_the_end_is_a_difference(
    name: str, index: int, differs: bool
) -> None:
    chief = {"replicaName": name, "replicaIndex": index}
    document = first(lambda d: d["spec"].update(terminationPolicy={"chief": chief}))
    differences = jobs.differences(jobs.convert(document))
    assert (TFJobDifference.TERMINATION_POLICY in differences) is differs


def test_other_fields_are_removed() -> None:
    document = first(lambda d: d["spec"].update(tfImage="example/servers:1", runtimeId="abcd"))
    notices = jobs.convert(document).notices
    [notice] = [notice for notice in notices if notice.difference is TFJobDifference.OLD_FIELDS]
    assert (notice.field, notice.received) == ("spec", "tfImage, runtimeId")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: entries(d).append(entries(d)[1]), "tfReplicaType: Worker is given twice"),
        (lambda d: entries(d)[1].update(tfReplicaType="BOSS"), "Boss: no role of TFJob"),
        (lambda d: entries(d)[1].pop("template"), "no template"),
        (lambda d: d["spec"].update(replicaSpecs={}), "spec.replicaSpecs: received {}"),
        (lambda d: d["spec"].update(replicaSpecs=["a"]), "spec.replicaSpecs[0]: received 'a'"),
    ],
)
def test_a_list_that_means_nothing_is_refused(change: jobs.Change, sentence: str) -> None:
    result = jobs.run("-", text=yaml.safe_dump(first(change)))
    assert result.exit_code == 2
    assert sentence in result.stderr
