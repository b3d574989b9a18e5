import pathlib
from typing import Any

import pytest

from testing.operator import local_jobs as jobs
from tfparallel.backends.local import local_run
from tfparallel.job_source import source
from tfparallel_operator.api import load

_TRUE = {"Worker": ["true"]}


def _trainer(**fields: Any) -> dict[str, Any]:
    return jobs.job({"Worker": {"replicas": 1}}, trainer={"epochs": 1, **fields})


def _container(**fields: Any) -> dict[str, Any]:
    return jobs.job({"Worker": {"template": jobs.template(**{"command": ["true"], **fields})}})


def _volume(**volume: Any) -> dict[str, Any]:
    mounts = [{"name": "data", "mountPath": "/data"}]
    pod_spec = {"volumes": [{"name": "data", **volume}]}
    return _container(volumeMounts=mounts, pod_spec=pod_spec)


_TEMPLATE = "spec.tfReplicaSpecs.Worker.template: "
_CONTAINER = "spec.tfReplicaSpecs.Worker.template.spec.containers[0]."

BAD: list[tuple[str, Any, str]] = [
    (
        "module",
        _trainer(module="nowhere.py"),
        "spec.trainer.module: received 'nowhere.py'; no such file in the job's folder",
    ),
    (
        "suspended",
        jobs.job(_TRUE, runPolicy={"suspend": True}),
        "spec.runPolicy.suspend: received true; a suspended job does not run: set it to false",
    ),
    (
        "entry-point",
        jobs.job({"Worker": {"template": jobs.template([])}}),
        f"{_TEMPLATE}container tensorflow has no command, and the entry point of its image cannot"
        " run here: write the command",
    ),
    (
        "value-from",
        _container(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]),
        f"{_TEMPLATE}env A: valueFrom is fieldRef, which is not in the job's file; pass the value"
        " by --env A=VALUE or --env-file",
    ),
    (
        "env-from",
        _container(envFrom=[{"configMapRef": {"name": "x"}}]),
        f"{_TEMPLATE}envFrom: ConfigMap 'x' is not in the job's file; add it there after a line"
        " with ---, or set optional to true",
    ),
    (
        "number-in-env",
        _container(env=[{"name": "A", "value": 3}]),
        f"{_CONTAINER}env[0].value: received 3; put it in quotes",
    ),
    (
        "number-in-args",
        _container(args=["--steps", 3]),
        f"{_CONTAINER}args[1]: received 3; put it in quotes",
    ),
    (
        "command-as-text",
        _container(command="python train.py"),
        f"{_CONTAINER}command: received 'python train.py'; write a list, such as [one, two]",
    ),
    (
        "variables-as-fields",
        _container(env={"FOO": "bar"}),
        f"{_CONTAINER}env: write a list, such as [{{name: FOO, value: 'bar'}}]",
    ),
    (
        "nameless-variable",
        _container(env=[{"value": "3"}]),
        f"{_CONTAINER}env[0].name: missing; it is required",
    ),
    (
        "quantity",
        _container(resources={"limits": {"memory": "4Gigs"}}),
        f"{_CONTAINER}resources.limits.memory: received '4Gigs'; write a quantity, such as 4Gi, 2"
        " or 500m",
    ),
    (
        "request-above-limit",
        _container(resources={"requests": {"cpu": "1.5"}, "limits": {"cpu": "1000m"}}),
        f"{_CONTAINER}resources.requests.cpu: received '1.5', which is above the limit '1000m';"
        " lower the request, or raise the limit",
    ),
    (
        "containers-as-text",
        jobs.job({"Worker": {"template": {"spec": {"containers": ["python"]}}}}),
        "spec.tfReplicaSpecs.Worker.template.spec.containers[0]: received 'python'; write fields",
    ),
    (
        "spec-as-text",
        jobs.job({"Worker": {"template": {"spec": "python"}}}),
        "spec.tfReplicaSpecs.Worker.template.spec: received 'python'; write fields",
    ),
    (
        "trainers-spec-as-text",
        jobs.job({"Worker": {"template": {"spec": "python"}}}, trainer={"epochs": 1}),
        "spec.tfReplicaSpecs.Worker.template.spec: received 'python'; write fields, such as"
        " containers: [...]",
    ),
    (
        "secret",
        _volume(secret={"secretName": "x"}),
        f"{_TEMPLATE}Secret 'x' is not in the job's file; add it there after a line with ---, or"
        " remove the volume for this run",
    ),
    (
        "no-volume",
        _container(volumeMounts=[{"name": "data", "mountPath": "/data"}]),
        f"{_TEMPLATE}volumeMounts: 'data' is not one of the volumes",
    ),
    (
        "items",
        _volume(configMap={"name": "x", "items": [{"key": "a", "path": "b"}]}),
        f"{_TEMPLATE}ConfigMap 'x' is mounted with items but is not in the job's file; add it"
        " there, after a line with ---",
    ),
]


@pytest.mark.parametrize(("document", "sentence"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
async def test_what_cannot_run_here_is_reported_before_anything_starts(
    tmp_path: pathlib.Path, document: Any, sentence: str
) -> None:
    recorder = jobs.RecordingWatcher()
    with pytest.raises(load.SpecError) as caught:
        job_source = source.read(jobs.write(tmp_path, document))
        await local_run.run(job_source, tmp_path / "out", recorder)
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith(sentence)
    assert recorder.placements == ()


async def test_an_item_that_its_config_map_lacks_is_reported(tmp_path: pathlib.Path) -> None:
    document = _volume(configMap={"name": "code", "items": [{"key": "b", "path": "b"}]})
    config_map = {"kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"a": ""}}
    job_source = source.read(jobs.write(tmp_path, document, config_map))
    with pytest.raises(load.SpecError, match=r"ConfigMap 'code': received the item .*'b'"):
        await local_run.run(job_source, tmp_path / "out", jobs.RecordingWatcher())


async def test_each_role_with_a_problem_has_its_sentence(tmp_path: pathlib.Path) -> None:
    template = jobs.template([])
    workers = {"replicas": 3, "template": template}
    document = jobs.job({"Chief": {"template": template}, "Worker": workers})
    job_source = source.read(jobs.write(tmp_path, document))
    with pytest.raises(load.SpecError) as caught:
        await local_run.run(job_source, tmp_path / "out", jobs.RecordingWatcher())
    assert [problem.split(".")[2] for problem in caught.value.problems] == ["Chief", "Worker"]


def test_the_module_may_lie_in_a_config_map_of_the_file(tmp_path: pathlib.Path) -> None:
    document = _trainer(source={"configMap": {"name": "code"}}, module="model.py")
    files = {"model.py": jobs.MODULE, "other.py": "pass"}
    config_map = {"kind": "ConfigMap", "metadata": {"name": "code"}, "data": files}
    job_source = source.read(jobs.write(tmp_path, document, config_map))
    expected = {"code": {"model.py": jobs.MODULE, "other.py": "pass"}}
    assert job_source.config_maps == expected
    del files["model.py"]
    with pytest.raises(load.SpecError, match=r"received 'model\.py'; no such file in ConfigMap"):
        source.read(jobs.write(tmp_path, document, config_map))


def test_what_only_a_cluster_does_is_noted(tmp_path: pathlib.Path) -> None:
    sidecar = {"name": "proxy", "image": "none"}
    fetch = {"name": "fetch", "image": "none"}
    template = jobs.template(["true"], pod_spec={"initContainers": [fetch]})
    template["spec"]["containers"].append(sidecar)
    service = {"kind": "Service", "metadata": {"name": "key"}}
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "data"}}
    document = jobs.job({"Worker": {"template": template}})
    job_source = source.read(jobs.write(tmp_path, document, service, claim))
    assert job_source.notes == (
        "Service 'key' of the file needs a cluster and is left out",
        "Worker: only the container tensorflow runs here, not fetch, proxy",
    )


_IMAGE = "spec.tfReplicaSpecs.Worker.template.spec.containers[0].image"


@pytest.mark.parametrize(
    "image", ["Nope/Case", "a b:1", "a:", "a:b:c", "a//b", "a@sha256:12", "-a"]
)
def test_an_image_that_no_cluster_can_pull_is_noted(tmp_path: pathlib.Path, image: str) -> None:
    document = jobs.job({"Worker": {"template": jobs.template(["true"], image=image)}})
    [note] = source.read(jobs.write(tmp_path, document)).notes
    assert note.startswith(f"{_IMAGE}: received {image!r}, which no cluster can pull; write")


@pytest.mark.parametrize(
    "image",
    [
        "none",
        "python:3.11",
        "a/b_c/d--e:V1.0_x",
        "localhost:5000/a",
        "Registry.example/a",
        f"r.io:80/a:1@sha256:{'0' * 64}",
    ],
)
def test_an_image_that_a_cluster_may_pull_is_not_noted(tmp_path: pathlib.Path, image: str) -> None:
    document = jobs.job({"Worker": {"template": jobs.template(["true"], image=image)}})
    assert source.read(jobs.write(tmp_path, document)).notes == ()


def test_a_container_needs_an_image_unless_it_is_the_trainers(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.py").write_text(jobs.MODULE)
    template = {"spec": {"containers": [{"name": "tensorflow", "command": ["true"]}]}}
    document = jobs.job({"Worker": {"template": template}})
    assert source.read(jobs.write(tmp_path, document)).notes == (
        f"{_IMAGE}: missing; a cluster needs it: write REGISTRY/NAME:TAG",
    )
    document["spec"]["trainer"] = {"epochs": 1}
    assert source.read(jobs.write(tmp_path, document)).notes == ()


@pytest.mark.parametrize(
    ("written", "assignments", "limit", "noted"),
    [
        (5, [], 5, False),
        (2147483647, [], source.RESTARTS, True),
        (2147483647, ["spec.runPolicy.backoffLimit=50"], 50, False),
    ],
)
def test_restarts_are_bounded_unless_more_are_asked_for(
    tmp_path: pathlib.Path, written: int, assignments: list[str], limit: int, noted: bool
) -> None:
    document = jobs.job(_TRUE, runPolicy={"backoffLimit": written})
    result = source.read(jobs.write(tmp_path, document), assignments)
    assert result.job.spec.run_policy.backoff_limit == limit
    note = (
        "spec.runPolicy.backoffLimit is 2147483647; on this machine 10 failures at most lead to a "
        "restart, unless --set spec.runPolicy.backoffLimit=N allows more"
    )
    assert result.notes == ((note,) if noted else ())


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"data": {"a": 3}}, "data.a: received 3; input should be a valid string"),
        ({"metadata": {}}, "metadata.name: received {}; field required"),
        ({"binaryData": {"a": "?"}}, "ConfigMap 'code': a is not base64: encode its bytes"),
    ],
)
def test_a_config_map_that_makes_no_files_is_refused(
    tmp_path: pathlib.Path, content: Any, sentence: str
) -> None:
    config_map = {"kind": "ConfigMap", "metadata": {"name": "code"}, **content}
    with pytest.raises(load.SpecError) as caught:
        source.read(jobs.write(tmp_path, jobs.job(_TRUE), config_map))
    assert caught.value.problems[0].endswith(sentence)


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("epochs", "--set epochs: write FIELD=VALUE, such as spec.trainer.epochs=3"),
        (".spec=1", "--set .spec=1: write FIELD=VALUE, such as spec.trainer.epochs=3"),
        ("kind.x=1", "--set kind.x=1: kind is 'TFParallelJob' and has no fields"),
        ("spec.a={", "--set spec.a={: the value is not YAML"),
        ("spec.colour=red", "spec.colour: unknown field; remove it or correct its spelling"),
    ],
)
def test_an_override_that_cannot_be_made_is_reported(
    tmp_path: pathlib.Path, assignment: str, sentence: str
) -> None:
    file = jobs.write(tmp_path, jobs.job(_TRUE))
    with pytest.raises(load.SpecError) as caught:
        source.read(file, [assignment])
    assert caught.value.problems == (sentence,)


def test_overrides_change_make_and_remove_fields(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.py").write_text(jobs.MODULE)
    file = jobs.write(tmp_path, _trainer(seed=4))
    overrides = [
        "spec.trainer.epochs=null",
        "spec.trainer.steps=7",
        "spec.runPolicy.backoffLimit=0",
    ]
    job_source = source.read(file, [*overrides, "spec.trainer.seed=5"])
    assert job_source.job.spec.trainer is not None
    assert (job_source.job.spec.trainer.epochs, job_source.job.spec.trainer.steps) == (None, 7)
    assert job_source.job.spec.trainer.seed == 5
    assert job_source.job.spec.run_policy.backoff_limit == 0
