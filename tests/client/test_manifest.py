"""Manifests from a model's module, and options that change a manifest."""

import pathlib
from typing import Any

import pytest

from tfparallel import manifest
from tfparallel_operator.api import load, types


@pytest.fixture
def module(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "My_Digits"
    folder.mkdir()
    file = folder / "model.py"
    file.write_text("")
    return file


def test_a_module_alone_trains_on_one_worker_for_one_epoch(module: pathlib.Path) -> None:
    document, folder = manifest.read(str(module))
    assert folder == module.parent
    assert document == {
        "apiVersion": "tfparallel.dev/v1alpha1",
        "kind": "TFParallelJob",
        "metadata": {"name": "my-digits"},
        "spec": {
            "trainer": {"module": "model.py", "epochs": 1},
            "tfReplicaSpecs": {"Worker": {"replicas": 1}},
        },
    }


def test_every_option_reaches_its_field(module: pathlib.Path) -> None:
    document = manifest.build(
        module,
        name="other",
        workers=2,
        max_workers=3,
        parameter_servers=1,
        evaluator=True,
        devices=4,
        strategy="ParameterServer",
        steps=10,
        global_batch_size=64,
        seed=7,
        checkpoint="digits",
        env={"MODE": "fast"},
        secrets=["bucket"],
        image="registry.example/trainer:1",
    )
    container = {"name": "tensorflow", "image": "registry.example/trainer:1"}
    template = {"spec": {"containers": [container]}}
    assert document["metadata"] == {"name": "other"}
    assert document["spec"] == {
        "strategy": "ParameterServer",
        "trainer": {
            "module": "model.py",
            "steps": 10,
            "globalBatchSize": 64,
            "seed": 7,
            "checkpoint": {"claim": "digits"},
            "env": [{"name": "MODE", "value": "fast"}],
            "envFrom": [{"secretRef": {"name": "bucket"}}],
        },
        "tfReplicaSpecs": {
            "Worker": {"replicas": 2, "maxReplicas": 3, "devices": 4, "template": template},
            "PS": {"replicas": 1, "template": template},
            "Evaluator": {"replicas": 1, "template": template},
        },
    }


def test_an_image_leaves_the_rest_of_a_template() -> None:
    sidecar = {"name": "sidecar", "image": "b"}
    trains = {"name": "tensorflow", "tty": True}
    pod_spec: dict[str, Any] = {"containers": [trains, sidecar], "hostPID": True}
    roles = {"Worker": {"template": {"metadata": {}, "spec": pod_spec}}, "PS": None}
    job = {**JOB, "spec": {"trainer": {"epochs": 1}, "tfReplicaSpecs": roles}}
    changed = manifest.change(job, image="a")["spec"]["tfReplicaSpecs"]
    with_image = {**trains, "image": "a"}
    spec = {"containers": [with_image, sidecar], "hostPID": True}
    assert changed["Worker"]["template"] == {"metadata": {}, "spec": spec}
    assert "image" not in pod_spec["containers"][0]


def test_a_mesh_is_for_model_split(module: pathlib.Path) -> None:
    document = manifest.build(module, workers=2, strategy="ModelSplit", mesh={"stage": 2})
    assert document["spec"]["mesh"] == {"stage": 2}


JOB: dict[str, Any] = {
    "apiVersion": "tfparallel.dev/v1alpha1",
    "kind": "TFParallelJob",
    "metadata": {"name": "digits", "labels": {"team": "vision"}},
    "spec": {
        "trainer": {"epochs": 3, "checkpoint": {"claim": "a", "keep": 5}},
        "tfReplicaSpecs": {"Chief": {}, "Worker": {"replicas": 1}, "Evaluator": {}},
    },
}


def test_options_change_a_manifest_and_leave_the_rest(tmp_path: pathlib.Path) -> None:
    changed, folder = manifest.read(
        JOB,
        tmp_path,
        name="again",
        steps=5,
        epochs=None,
        workers=0,
        evaluator=False,
        devices=2,
        checkpoint={"claim": "b"},
    )
    assert folder == tmp_path
    assert changed["metadata"] == {"name": "again", "labels": {"team": "vision"}}
    assert changed["spec"] == {
        "trainer": {"steps": 5, "checkpoint": {"claim": "b"}},
        "tfReplicaSpecs": {"Chief": {"devices": 2}},
    }
    assert JOB["spec"]["trainer"]["epochs"] == 3


def test_a_file_and_a_typed_job_are_sources_too(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(str(JOB))
    assert manifest.read(file) == (JOB, tmp_path)
    document, folder = manifest.read(types.TFParallelJob.model_validate(JOB), epochs=4)
    assert folder == pathlib.Path()
    assert document["spec"]["trainer"] == {**JOB["spec"]["trainer"], "epochs": 4}


@pytest.mark.parametrize(
    ("source", "options", "sentence"),
    [
        ("no/model.py", {}, "no such file; give the path of your model.py"),
        ("no/job.yaml", {}, "no such file; give the path of a job's YAML file"),
        ("model.h5", {}, "give the path of a Python module, or of a job's YAML file"),
        (JOB, {"workers": -1}, "spec.tfReplicaSpecs.Worker.replicas: received -1"),
        (JOB, {"name": "digits", "epochs": 1, "steps": 1}, "both"),
        (
            {**JOB, "spec": {"tfReplicaSpecs": {"Worker": {}}}},
            {"epochs": 2},
            "epochs is 2, and the job has no spec.trainer",
        ),
    ],
)
def test_what_is_wrong_is_reported(source: Any, options: Any, sentence: str) -> None:
    with pytest.raises(load.SpecError) as refusal:
        manifest.read(source, **options)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    "options", [{}, {"workers": 2}, {"epochs": 2}, {"devices": 1}, {"image": "a"}]
)
@pytest.mark.parametrize(
    "fields",
    [
        {"spec": None},
        {"spec": []},
        {"spec": {"tfReplicaSpecs": "Worker"}},
        {"spec": {"tfReplicaSpecs": {"Worker": []}, "trainer": {}}},
        {"spec": {"tfReplicaSpecs": {"Worker": {"template": []}}, "trainer": {}}},
        {"spec": {"tfReplicaSpecs": {"Worker": {"template": {"spec": 1}}}, "trainer": {}}},
        {"spec": {"trainer": []}},
        {"metadata": []},
    ],
)
def test_options_for_what_is_no_job_are_refused(
    fields: dict[str, Any], options: manifest.Options
) -> None:
    with pytest.raises(load.SpecError):
        manifest.read({**JOB, **fields}, **options)


def test_a_prefix_of_a_name_gives_one() -> None:
    document, _ = manifest.read({**JOB, "metadata": {"generateName": "digits-"}})
    assert document["metadata"]["name"].startswith("digits-")


def test_a_file_with_other_objects_is_refused(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"{JOB}\n---\nkind: ConfigMap\n")
    with pytest.raises(load.SpecError, match="holds ConfigMap besides the job"):
        manifest.read(file)


def test_an_option_that_does_not_exist_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="'worker' is no option of a job: did you mean 'workers'"):
        manifest.read(JOB, worker=2)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a/b/Deep CNN.py", "deep-cnn"),
        ("2024/model.py", "job-2024"),
        ("__/model.py", "job"),
        (f"{'x' * 60}.py", "x" * 40),
    ],
)
def test_a_job_is_named_after_its_module(path: str, name: str) -> None:
    assert manifest.name_of(pathlib.Path(path)) == name
