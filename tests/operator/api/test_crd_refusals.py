"""What the API server refuses of the custom resource, and what it says."""

import copy
import json
from typing import Any

import pytest

from testing.cluster import console, handle
from testing.operator import objects, spec_changes
from tfparallel_operator.api import load, names
from tfparallel_operator.api_server import client, errors, resources


def _without_template(job: dict[str, Any]) -> None:
    del spec_changes.roles(job)["Worker"]["template"]


def _evaluator_alone(job: dict[str, Any]) -> None:
    job["spec"]["tfReplicaSpecs"] = {"Evaluator": {"template": objects.template()}}


def _servers_without_workers(job: dict[str, Any]) -> None:
    del spec_changes.roles(job)["Worker"]
    spec_changes.roles(job)["PS"] = {"template": objects.template()}


def _variable(**fields: Any) -> spec_changes.Change:
    return spec_changes.trainer(epochs=1, env=[{"name": "A", **fields}])


def _volume(*volumes: dict[str, Any]) -> spec_changes.Change:
    volumes_of_trainer = [
        {"name": "data", "mountPath": "/data", "claim": "data", **volume} for volume in volumes
    ]
    return spec_changes.trainer(epochs=1, volumes=volumes_of_trainer)


def _split_over_unequal(job: dict[str, Any]) -> None:
    spec_changes.split(data=-1)(job)
    spec_changes.roles(job)["Chief"]["devices"] = 2


BAD: dict[str, tuple[spec_changes.Change, str]] = {
    "unknown role": (
        lambda job: spec_changes.roles(job).update(worker={"template": objects.template()}),
        "the roles are Chief, Master, Worker, PS and Evaluator, spelt like this",
    ),
    "two chiefs": (
        lambda job: spec_changes.roles(job)["Chief"].update(replicas=2),
        "a job has one chief: set Chief.replicas to 1",
    ),
    "chief and master": (
        lambda job: spec_changes.roles(job).update(Master={"template": objects.template()}),
        "give one of them, not both",
    ),
    "two evaluators": (
        lambda job: spec_changes.roles(job).update(
            Evaluator={"replicas": 2, "template": objects.template()}
        ),
        "a job has one evaluator: set Evaluator.replicas to 1",
    ),
    "servers without workers": (
        _servers_without_workers,
        "parameter servers need workers: add Worker",
    ),
    "nothing that trains": (_evaluator_alone, "nothing would train: add Worker or Chief"),
    "no template": (_without_template, "a role has no template: add one with a container named"),
    "misplaced cleanPodPolicy": (
        lambda job: job["spec"].update(cleanPodPolicy="All"),
        "this field belongs below spec.runPolicy: move it there",
    ),
    "misplaced backoffLimit": (
        lambda job: job["spec"].update(backoffLimit=2),
        "this field belongs below spec.runPolicy: move it there",
    ),
    "an unknown gang scheduler": (
        lambda job: job["spec"].update(scheduling={"gang": "volcano"}),
        'Unsupported value: "volcano"',
    ),
    "epochs and steps": (
        spec_changes.trainer(epochs=1, steps=1),
        "give either epochs or steps, so that training has one length",
    ),
    "no length": (
        spec_changes.trainer(seed=1),
        "give either epochs or steps, so that training has one length",
    ),
    "state in two places": (
        spec_changes.trainer(epochs=1, checkpoint={"claim": "c", "uri": "s3://b"}),
        "give either checkpoint.claim or checkpoint.uri, so that state has one place",
    ),
    "state in no place": (
        spec_changes.trainer(epochs=1, checkpoint={}),
        "give either checkpoint.claim or checkpoint.uri, so that state has one place",
    ),
    "state on a web server": (
        spec_changes.trainer(epochs=1, checkpoint={"uri": "https://b/c"}),
        "checkpoint.uri is https://b/c: give s3://BUCKET/PREFIX or gs://BUCKET/PREFIX",
    ),
    "state in no bucket": (
        spec_changes.trainer(epochs=1, checkpoint={"uri": "s3:///prefix"}),
        "checkpoint.uri is s3:///prefix: give s3://BUCKET/PREFIX or gs://BUCKET/PREFIX",
    ),
    "a strategy without its servers": (
        lambda job: job["spec"].update(strategy="ParameterServer"),
        "strategy ParameterServer needs servers: add PS, or remove strategy",
    ),
    "two managers": (
        lambda job: job["spec"].update(
            managedBy="kueue.x-k8s.io/multikueue", runPolicy={"managedBy": "example.com/other"}
        ),
        "managedBy and runPolicy.managedBy differ: remove runPolicy.managedBy",
    ),
    "several replicas for Mirrored": (
        lambda job: job["spec"].update(strategy="Mirrored"),
        "strategy Mirrored trains on the devices of one replica",
    ),
    "a mesh of other devices": (
        spec_changes.split(data=2, stage=-1, tensor=3),
        "mesh is data 2 x stage -1 x spatial 1 x tensor 3, which does not fit the 4 devices of all"
        " replicas. Change an axis, replicas or devices",
    ),
    "a mesh with two rests": (
        spec_changes.split(data=-1, stage=-1),
        "only one may be, give the others",
    ),
    "a mesh with nothing": (spec_changes.split(data=0), "give a number from 1, or -1"),
    "a mesh for the planner with an axis": (
        spec_changes.split(auto=True, stage=2),
        "mesh.auto lets the planner choose axes, cuts and microbatches",
    ),
    "a mesh with too few cuts": (
        spec_changes.split(stage=4, cuts=["dense"]),
        "give as many names less one as mesh.stage",
    ),
    "a mesh whose rest is not its cuts": (
        spec_changes.split(stage=-1, cuts=["dense"]),
        "the devices make another number of stages than mesh.cuts",
    ),
    "a mesh for the planner with cuts": (
        spec_changes.split(auto=True, cuts=["dense"]),
        "mesh.auto lets the planner choose axes, cuts and microbatches",
    ),
    "a mesh that cannot share the optimizer's state": (
        spec_changes.split(stage=4, shardOptimizer=True),
        "which is 1: give data at least 2, or remove shardOptimizer",
    ),
    "a mesh without its strategy": (
        lambda job: job["spec"].update(mesh={"data": -1}),
        "mesh and strategy ModelSplit belong together",
    ),
    "ModelSplit without a mesh": (
        lambda job: job["spec"].update(strategy="ModelSplit", trainer={"epochs": 1}),
        "mesh and strategy ModelSplit belong together",
    ),
    "a batch that microbatches do not divide": (
        spec_changes.split(stage=4, microbatches=5),
        "trainer.globalBatchSize is 32, which is not divisible by mesh.data 1 x"
        " mesh.microbatches 5",
    ),
    "a batch that the rest does not divide": (
        spec_changes.split(data=-1, microbatches=16),
        "trainer.globalBatchSize is 32, which is not divisible by mesh.data 4 x mesh.microbatches",
    ),
    "a mesh of nothing and the rest": (
        spec_changes.split(data=-1, stage=0),
        "give a number from 1, or -1",
    ),
    "a mesh over unequal replicas": (
        _split_over_unequal,
        "a mesh needs equally many devices in each replica",
    ),
    "two sources": (
        spec_changes.trainer(
            epochs=1, source={"configMap": {"name": "code"}, "archive": spec_changes.ARCHIVE}
        ),
        "give either source.configMap or source.archive",
    ),
    "requirements of nothing": (
        spec_changes.trainer(epochs=1, source={"requirements": "requirements.txt"}),
        "give either source.configMap or source.archive",
    ),
    "too many chunks": (
        spec_changes.trainer(
            epochs=1, source={"archive": {**spec_changes.ARCHIVE, "configMaps": ["a"] * 33}}
        ),
        "must have at most 32 items",
    ),
    "a digest that is none": (
        spec_changes.trainer(
            epochs=1, source={"archive": {**spec_changes.ARCHIVE, "sha256": "ABC"}}
        ),
        "should match '^[0-9a-f]{64}$'",
    ),
    "requirements outside of the source": (
        spec_changes.trainer(
            epochs=1,
            source={"archive": spec_changes.ARCHIVE, "requirements": "../requirements.txt"},
        ),
        "spec.trainer.source.requirements",
    ),
    "a variable of the operator's": (
        spec_changes.trainer(epochs=1, env=[{"name": "TF_CONFIG", "value": "{}"}]),
        "the operator sets TF_CONFIG: remove it",
    ),
    "a variable with two values": (
        _variable(value="a", valueFrom={"fieldRef": {"fieldPath": "metadata.name"}}),
        "a variable has one value: give either value or valueFrom",
    ),
    "a value from nowhere": (_variable(valueFrom={}), "a value has one source: give secretKeyRef"),
    "variables from nowhere": (
        spec_changes.trainer(epochs=1, envFrom=[{"prefix": "A_"}]),
        "give either secretRef or configMapRef",
    ),
    "a volume of two kinds": (
        _volume({"secret": "key"}),
        "a volume has one source: give claim, configMap or secret",
    ),
    "a volume of the operator's name": (
        _volume({"name": "tfparallel-source"}),
        "names that begin with tfparallel- are the operator's: give another name",
    ),
    "a volume in the source": (
        _volume({"mountPath": "/workspace/source/data"}),
        "mountPath meets a folder of the trainer",
    ),
    "a volume over the output": (_volume({"mountPath": "/output"}), "mountPath meets a folder"),
    "a volume around the workspace": (
        _volume({"mountPath": "/workspace"}),
        "mountPath meets a folder",
    ),
    "a volume on a path that leads back": (
        _volume({"mountPath": "/data/../output"}),
        "mountPath meets a folder",
    ),
    "a volume at no path": (_volume({"mountPath": "data"}), "spec.trainer.volumes[0].mountPath"),
    "two volumes of one name": (
        _volume({}, {"mountPath": "/other"}),
        "two volumes have one name: give each its own",
    ),
    "two volumes at one path": (
        _volume({}, {"name": "other"}),
        "two volumes have one mountPath: give each its own",
    ),
    "two claims of one name": (
        spec_changes.claims("data", "data"),
        "two of volumeClaimTemplates have one name: give each its own",
    ),
    "a claim without a mode": (spec_changes.claims("data", accessModes=[]), "accessModes"),
    "a claim of an unknown mode": (
        spec_changes.claims("data", accessModes=["ReadWrite"]),
        'Unsupported value: "ReadWrite"',
    ),
    "a name too long for the pods": (
        lambda job: job["metadata"].update(name="a" * 56),
        "metadata.name is too long: with role and index the names of its pods pass 63 characters",
    ),
    "a name that begins with a digit": (
        lambda job: job["metadata"].update(name="1st"),
        "metadata.name must begin with a lower-case letter",
    ),
    "an unknown policy": (
        lambda job: job["spec"].update(runPolicy={"cleanPodPolicy": "Never"}),
        'Unsupported value: "Never"',
    ),
    "no replicas": (
        lambda job: spec_changes.roles(job)["Worker"].update(replicas=0),
        "should be greater than or equal to 1",
    ),
}
"""What is wrong, how to make a job so, and the sentence that is expected."""


OTHER_WORDS = {
    "a claim of an unknown mode",
    "a digest that is none",
    "a mesh for the planner with an axis",
    "a mesh for the planner with cuts",
    "a mesh with too few cuts",
    "a mesh that cannot share the optimizer's state",
    "a mesh with two rests",
    "an unknown gang scheduler",
    "an unknown policy",
    "epochs and steps",
    "no length",
    "state in no bucket",
    "state in no place",
    "state in two places",
    "state on a web server",
    "too many chunks",
    "unknown role",
}
"""What the command itself says otherwise: see test_load.py and test_load_meshes.py."""


def _bad(name: str) -> tuple[dict[str, Any], str]:
    change, sentence = BAD[name]
    job = copy.deepcopy(objects.job())
    change(job)
    return job, sentence


@pytest.mark.parametrize("name", BAD)
async def test_the_api_server_refuses_with_a_sentence(name: str, api: client.Client) -> None:
    job, sentence = _bad(name)
    with pytest.raises(errors.Invalid) as caught:
        await api.create(resources.JOBS, "default", job)
    assert sentence in str(caught.value)


def test_the_sentences_reach_a_user_of_kubectl_apply(cluster: handle.Cluster) -> None:
    jobs, sentences = [], {}
    for number, name in enumerate(BAD):
        job, sentence = _bad(name)
        if job["metadata"]["name"] == "digits":
            job["metadata"]["name"] = f"bad-{number}"
        jobs.append(job)
        sentences[job["metadata"]["name"]] = sentence
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": jobs})
    with pytest.raises(console.ClusterError) as caught:
        cluster.run_kubectl("apply", "-f", "-", input=manifest)
    refusals = str(caught.value).split(f'{names.KIND}.{names.GROUP} "')[1:]
    by_name = {refusal.partition('"')[0]: refusal for refusal in refusals}
    assert by_name.keys() == sentences.keys()
    for name, sentence in sentences.items():
        assert sentence in by_name[name]


@pytest.mark.parametrize("name", BAD)
def test_what_the_api_server_refuses_is_refused_without_one_too(name: str) -> None:
    job, sentence = _bad(name)
    with pytest.raises(load.SpecError) as refused:
        load.parse_job(job)
    assert name in OTHER_WORDS or any(sentence in problem for problem in refused.value.problems)
