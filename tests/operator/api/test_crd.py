"""The custom resource as the API server sees it: what it takes in, and what it says to the rest."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from testing.cluster import console, handle
from testing.operator import harness, objects
from tfparallel_operator.api import load, names, schema
from tfparallel_operator.api_server import client, errors, resources
from tfparallel_trainer.contract import job_file

Change = Callable[[dict[str, Any]], object]


def _roles(job: dict[str, Any]) -> Any:
    return job["spec"]["tfReplicaSpecs"]


def _without_template(job: dict[str, Any]) -> None:
    del _roles(job)["Worker"]["template"]


def _evaluator_alone(job: dict[str, Any]) -> None:
    job["spec"]["tfReplicaSpecs"] = {"Evaluator": {"template": objects.template()}}


def _servers_without_workers(job: dict[str, Any]) -> None:
    del _roles(job)["Worker"]
    _roles(job)["PS"] = {"template": objects.template()}


def _trainer(**fields: Any) -> Change:
    return lambda job: job["spec"].update(trainer=fields)


def _variable(**fields: Any) -> Change:
    return _trainer(epochs=1, env=[{"name": "A", **fields}])


def _volume(*volumes: dict[str, Any]) -> Change:
    given = [{"name": "data", "mountPath": "/data", "claim": "data", **one} for one in volumes]
    return _trainer(epochs=1, volumes=given)


def _claims(*names: str, **spec: Any) -> Change:
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    given = [{"metadata": {"name": name}, "spec": {**wanted, **spec}} for name in names]
    return lambda job: job["spec"].update(volumeClaimTemplates=given)


ARCHIVE = {"configMaps": ["code"], "sha256": "0" * 64}


def _split(**mesh: Any) -> Change:
    """Give the job a chief and three workers of one device, and a mesh."""

    def change(job: dict[str, Any]) -> None:
        job["spec"].update(strategy="ModelSplit", mesh=mesh, trainer={"epochs": 1})
        job["spec"]["tfReplicaSpecs"] = {"Chief": {}, "Worker": {"replicas": 3}}

    return change


def _split_over_unequal(job: dict[str, Any]) -> None:
    _split(data=-1)(job)
    _roles(job)["Chief"]["devices"] = 2


BAD: dict[str, tuple[Change, str]] = {
    "unknown role": (
        lambda job: _roles(job).update(worker={"template": objects.template()}),
        "the roles are Chief, Master, Worker, PS and Evaluator, spelt like this",
    ),
    "two chiefs": (
        lambda job: _roles(job)["Chief"].update(replicas=2),
        "a job has one chief: set Chief.replicas to 1",
    ),
    "chief and master": (
        lambda job: _roles(job).update(Master={"template": objects.template()}),
        "give one of them, not both",
    ),
    "two evaluators": (
        lambda job: _roles(job).update(Evaluator={"replicas": 2, "template": objects.template()}),
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
        _trainer(epochs=1, steps=1),
        "give either epochs or steps, so that training has one length",
    ),
    "no length": (_trainer(seed=1), "give either epochs or steps, so that training has one length"),
    "state in two places": (
        _trainer(epochs=1, checkpoint={"claim": "c", "uri": "s3://b"}),
        "give either checkpoint.claim or checkpoint.uri, so that state has one place",
    ),
    "state in no place": (
        _trainer(epochs=1, checkpoint={}),
        "give either checkpoint.claim or checkpoint.uri, so that state has one place",
    ),
    "state on a web server": (
        _trainer(epochs=1, checkpoint={"uri": "https://b/c"}),
        "checkpoint.uri is https://b/c: give s3://BUCKET/PREFIX or gs://BUCKET/PREFIX",
    ),
    "state in no bucket": (
        _trainer(epochs=1, checkpoint={"uri": "s3:///prefix"}),
        "checkpoint.uri is s3:///prefix: give s3://BUCKET/PREFIX or gs://BUCKET/PREFIX",
    ),
    "a strategy without its servers": (
        lambda job: job["spec"].update(strategy="ParameterServer"),
        "strategy ParameterServer needs servers: add PS, or remove strategy",
    ),
    "several replicas for Mirrored": (
        lambda job: job["spec"].update(strategy="Mirrored"),
        "strategy Mirrored trains on the devices of one replica",
    ),
    "a mesh of other devices": (
        _split(data=2, stage=-1, tensor=3),
        "mesh is data 2 x stage -1 x spatial 1 x tensor 3, which does not fit the 4 devices of all"
        " replicas: change an axis, replicas or devices",
    ),
    "a mesh with two rests": (_split(data=-1, stage=-1), "only one may be, give the others"),
    "a mesh with nothing": (_split(data=0), "give a number from 1, or -1"),
    "a mesh for the planner with an axis": (
        _split(auto=True, stage=2),
        "mesh.auto lets the planner choose axes, cuts and microbatches",
    ),
    "a mesh with too few cuts": (
        _split(stage=4, cuts=["dense"]),
        "give as many names less one as mesh.stage",
    ),
    "a mesh whose rest is not its cuts": (
        _split(stage=-1, cuts=["dense"]),
        "the devices make another number of stages than mesh.cuts",
    ),
    "a mesh for the planner with cuts": (
        _split(auto=True, cuts=["dense"]),
        "mesh.auto lets the planner choose axes, cuts and microbatches",
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
        _split(stage=4, microbatches=5),
        "trainer.globalBatchSize is 32, which does not divide by mesh.data 1 x mesh.microbatches 5",
    ),
    "a batch that the rest does not divide": (
        _split(data=-1, microbatches=16),
        "trainer.globalBatchSize is 32, which does not divide by mesh.data 4 x mesh.microbatches",
    ),
    "a mesh of nothing and the rest": (_split(data=-1, stage=0), "give a number from 1, or -1"),
    "a mesh over unequal replicas": (
        _split_over_unequal,
        "a mesh needs equally many devices in each replica",
    ),
    "two sources": (
        _trainer(epochs=1, source={"configMap": {"name": "code"}, "archive": ARCHIVE}),
        "give either source.configMap or source.archive",
    ),
    "requirements of nothing": (
        _trainer(epochs=1, source={"requirements": "requirements.txt"}),
        "give either source.configMap or source.archive",
    ),
    "too many chunks": (
        _trainer(epochs=1, source={"archive": {**ARCHIVE, "configMaps": ["a"] * 33}}),
        "must have at most 32 items",
    ),
    "a digest that is none": (
        _trainer(epochs=1, source={"archive": {**ARCHIVE, "sha256": "ABC"}}),
        "should match '^[0-9a-f]{64}$'",
    ),
    "requirements outside of the source": (
        _trainer(epochs=1, source={"archive": ARCHIVE, "requirements": "../requirements.txt"}),
        "spec.trainer.source.requirements",
    ),
    "a variable of the operator's": (
        _trainer(epochs=1, env=[{"name": "TF_CONFIG", "value": "{}"}]),
        "the operator sets TF_CONFIG: remove it",
    ),
    "a variable with two values": (
        _variable(value="a", valueFrom={"fieldRef": {"fieldPath": "metadata.name"}}),
        "a variable has one value: give either value or valueFrom",
    ),
    "a value from nowhere": (_variable(valueFrom={}), "a value has one source: give secretKeyRef"),
    "variables from nowhere": (
        _trainer(epochs=1, envFrom=[{"prefix": "A_"}]),
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
        _claims("data", "data"),
        "two of volumeClaimTemplates have one name: give each its own",
    ),
    "a claim without a mode": (_claims("data", accessModes=[]), "accessModes"),
    "a claim of an unknown mode": (
        _claims("data", accessModes=["ReadWrite"]),
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
        lambda job: _roles(job)["Worker"].update(replicas=0),
        "should be greater than or equal to 1",
    ),
}
"""What is wrong, how to make a job so, and the sentence that is expected."""


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


def test_the_sentences_reach_whoever_applies_with_kubectl(cluster: handle.Cluster) -> None:
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
    job, _ = _bad(name)
    with pytest.raises(load.SpecError):
        load.parse_job(job)


async def test_an_unknown_field_is_refused_where_strict_validation_is_asked_for(
    place: harness.Place,
) -> None:
    job = objects.job(runPolcy={"backoffLimit": 1})
    with pytest.raises(errors.Invalid, match=r'unknown field "spec\.runPolcy"'):
        await place.create_job(job)
    with pytest.raises(console.ClusterError, match=r'unknown field "spec\.runPolcy"'):
        place.kubectl("apply", "-f", "-", given=job)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda job: _roles(job)["Worker"].update(replicas=3),
            "roles and their replicas cannot change once the job exists",
        ),
        (
            lambda job: _roles(job).update(PS={"template": objects.template()}),
            "roles and their replicas cannot change once the job exists",
        ),
        (
            lambda job: job["spec"].update(strategy="MultiWorkerMirrored"),
            "strategy cannot change once the job exists",
        ),
        (
            _trainer(epochs=2),
            "trainer cannot change once the job exists",
        ),
        (
            _claims("data"),
            "volumeClaimTemplates and persistentVolumeClaimRetentionPolicy cannot change",
        ),
        (
            lambda job: job["spec"].update(
                persistentVolumeClaimRetentionPolicy={"whenDeleted": "Delete"}
            ),
            "volumeClaimTemplates and persistentVolumeClaimRetentionPolicy cannot change",
        ),
        (
            lambda job: job["spec"].update(mesh={"data": 1}),
            "mesh cannot change once the job exists",
        ),
        (
            lambda job: job["spec"].update(scheduling={"gang": "Volcano"}),
            "scheduling.gang and runPolicy.schedulingPolicy change only while the job is suspended",
        ),
        (
            lambda job: job["spec"].update(runPolicy={"schedulingPolicy": {"minAvailable": 2}}),
            "scheduling.gang and runPolicy.schedulingPolicy change only while the job is suspended",
        ),
    ],
)
async def test_what_may_not_change_is_refused(
    change: Change, sentence: str, place: harness.Place
) -> None:
    job = await place.create_job()
    change(job)
    path = resources.JOBS.path(place.namespace, "digits")
    with pytest.raises(errors.Invalid) as caught:
        await place.api.patch(path, {"spec": job["spec"]})
    assert sentence in str(caught.value)


async def test_what_may_change_is_taken(place: harness.Place) -> None:
    job = objects.job()
    place.kubectl("apply", "-f", "-", given=job)
    changed = copy.deepcopy(job)
    policy = {"minAvailable": 2, "minResources": {"cpu": 4, "nvidia.com/gpu": "8"}}
    changed["spec"]["runPolicy"] = {"suspend": True, "schedulingPolicy": policy, "backoffLimit": 7}
    changed["spec"]["scheduling"] = {"gang": "Coscheduling"}
    place.kubectl("apply", "-f", "-", given=changed)
    found = await place.job()
    assert found["spec"]["runPolicy"]["backoffLimit"] == 7
    assert found["spec"]["runPolicy"]["schedulingPolicy"] == policy
    assert found["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    "mesh", [{"data": 2, "tensor": 2}, {"stage": -1, "cuts": ["a", "b", "c"]}, {"auto": True}]
)
async def test_a_mesh_that_fits_is_taken_and_completed(
    mesh: dict[str, Any], place: harness.Place
) -> None:
    job = objects.job()
    _split(**mesh)(job)
    found = await place.create_job(job)
    assert found["spec"]["mesh"] == {
        "data": 1,
        "stage": 1,
        "spatial": 1,
        "tensor": 1,
        "microbatches": 1,
        "schedule": "1F1B",
        "auto": False,
        **mesh,
    }
    assert load.parse_job(found).spec.mesh == job_file.Mesh(**mesh)


async def test_all_that_a_trainer_may_be_given_is_taken(place: harness.Place) -> None:
    key = {"name": "store", "key": "token"}
    trainer = {
        "epochs": 1,
        "source": {"archive": ARCHIVE, "requirements": "requirements.txt"},
        "env": [
            {"name": "PIP_INDEX_URL", "value": "https://index.example/simple"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": key}},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "envFrom": [{"secretRef": {"name": "all"}, "prefix": "S_"}],
        "volumes": [{"name": "images", "mountPath": "/data", "claim": "images"}],
        "imagePullSecrets": ["registry"],
    }
    job = objects.job()
    _claims("images")(job)
    job["spec"] |= {
        "trainer": trainer,
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"},
    }
    found = await place.create_job(job)
    assert found["spec"]["trainer"]["volumes"][0]["readOnly"] is False
    assert load.parse_job(found).spec.trainer is not None
    await place.api.patch(
        resources.JOBS.path(place.namespace, "digits"), {"spec": {"runPolicy": {"suspend": True}}}
    )


async def test_defaults_are_filled_in(place: harness.Place) -> None:
    job = await place.create_job(objects.job(runPolicy={}))
    assert job["spec"]["runPolicy"] == {
        "backoffLimit": 3,
        "cleanPodPolicy": "Running",
        "evaluatorGraceSeconds": 300,
        "scaleCooldownSeconds": 60,
        "suspend": False,
    }
    assert job["spec"]["tfReplicaSpecs"]["Chief"]["replicas"] == 1


async def test_a_job_of_the_largest_size_passes(place: harness.Place) -> None:
    job = await place.create_job(objects.job(workers=5000))
    assert job["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] == 5000
    load.parse_job(job)


def test_the_resource_is_applied_by_plain_kubectl_and_can_be_applied_again(
    cluster: handle.Cluster,
) -> None:
    text = yaml.safe_dump(schema.custom_resource_definition())
    assert len(text) < 100_000
    answer = cluster.run_kubectl("apply", "-f", "-", input=text)
    assert f"{names.PLURAL}.{names.GROUP} unchanged" in answer
    found = json.loads(
        cluster.run_kubectl("get", "crd", f"{names.PLURAL}.{names.GROUP}", "-o", "json")
    )
    conditions = {each["type"]: each["status"] for each in found["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert "NonStructuralSchema" not in conditions
    assert "tfpj" in cluster.run_kubectl("api-resources", f"--api-group={names.GROUP}")
