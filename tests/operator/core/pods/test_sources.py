"""How code, packages, variables and volumes come to the pods of a trainer."""

import copy
from typing import Any

import pytest

from testing.operator import builders
from tfparallel_operator.api import load, names, paths, types
from tfparallel_operator.core import layout, replicas
from tfparallel_operator.core.pods import config, containers, sources
from tfparallel_trainer.contract import source_code

WORKER = replicas.Replica(types.Role.WORKER, 0)
SHA256 = "0" * 64
ARCHIVE = {"archive": {"configMaps": ["code-0", "code-1"], "sha256": SHA256}}

Json = dict[str, Any]


def pod_of(trainer: Json, template: Json | None = None, **spec: Any) -> Json:
    document = builders.manifest(trainer=True, worker=1)
    document["spec"]["trainer"] |= trainer
    document["spec"] |= spec
    if template is not None:
        document["spec"]["tfReplicaSpecs"]["Worker"]["template"] = {"spec": template}
    job = load.parse_job(document)
    pod = builders.a_pod(job, WORKER)
    pod_spec: Json = pod["spec"]
    return pod_spec


def training(pod: Json) -> Json:
    [container] = [
        container for container in pod["containers"] if container["name"] == names.CONTAINER
    ]
    trainer: Json = container
    return trainer


def variables(container: Json) -> Json:
    return {
        variable["name"]: variable.get("value", variable.get("valueFrom"))
        for variable in container["env"]
    }


def mounts(container: Json) -> Json:
    return {
        mount["name"]: (mount["mountPath"], mount["readOnly"])
        for mount in container["volumeMounts"]
    }


def volumes(pod: Json) -> Json:
    return {
        volume["name"]: {key: value for key, value in volume.items() if key != "name"}
        for volume in pod["volumes"]
    }


@pytest.mark.parametrize("source", [ARCHIVE, {"configMap": {"name": "code"}}, None])
def test_code_runs_in_the_folder_that_it_lies_in(source: Json | None) -> None:
    """There `open("labels.txt")` finds the file next to the module, as in a local run."""
    trainer = training(pod_of({} if source is None else {"source": source}))
    assert trainer["workingDir"] == variables(trainer)["TFPARALLEL_SOURCE_DIR"]
    template = {"containers": [{"name": names.CONTAINER, "workingDir": "/mine"}]}
    assert training(pod_of({"source": ARCHIVE}, template))["workingDir"] == "/mine"


def test_an_archive_is_unpacked_by_an_init_container_of_the_trainers_image() -> None:
    pod = pod_of({"source": ARCHIVE})
    [fetching], trainer = pod["initContainers"], training(pod)
    assert fetching["name"] == "tfparallel-source"
    assert (fetching["image"], fetching["securityContext"]) == (
        trainer["image"],
        trainer["securityContext"],
    )
    assert fetching["command"] == [
        *("python", "-m", "tfparallel_trainer.source", "--source", "/workspace/source"),
        *("--chunks", "/etc/tfparallel/chunks", "--sha256", SHA256),
    ]
    chunks = volumes(pod)["tfparallel-chunks"]["projected"]["sources"]
    assert [source["configMap"] for source in chunks] == [
        {"name": "code-0", "items": [{"key": "chunk", "path": "0000"}]},
        {"name": "code-1", "items": [{"key": "chunk", "path": "0001"}]},
    ]
    assert volumes(pod)["tfparallel-source"] == {"emptyDir": {"sizeLimit": "512M"}}
    assert mounts(fetching)["tfparallel-source"] == (paths.SOURCE_DIR, False)
    assert mounts(trainer)["tfparallel-source"] == (paths.SOURCE_DIR, True)
    assert "tfparallel-chunks" not in mounts(trainer)
    assert variables(trainer)["TFPARALLEL_SOURCE_DIR"] == paths.SOURCE_DIR
    assert variables(fetching)["TFPARALLEL_FAILURE_FILE"] == "/dev/termination-log"


def test_files_of_a_config_map_need_no_init_container() -> None:
    assert "initContainers" not in pod_of({"source": {"configMap": {"name": "code"}}})


@pytest.mark.parametrize("source", [ARCHIVE, {"configMap": {"name": "code"}}])
def test_packages_are_installed_where_python_looks_first(source: Json) -> None:
    pod = pod_of({"source": {**source, "requirements": "needs/requirements.txt"}})
    [fetching], trainer = pod["initContainers"], training(pod)
    arguments = fetching["command"][-4:]
    assert arguments == [
        "--requirements",
        "needs/requirements.txt",
        "--packages",
        paths.PACKAGES_DIR,
    ]
    assert mounts(fetching)["tfparallel-packages"] == (paths.PACKAGES_DIR, False)
    assert mounts(fetching)["tfparallel-source"] == (paths.SOURCE_DIR, "configMap" in source)
    assert mounts(trainer)["tfparallel-packages"] == (paths.PACKAGES_DIR, True)
    assert variables(trainer)["PYTHONPATH"] == paths.PACKAGES_DIR
    assert "PYTHONPATH" not in variables(fetching)


def test_packages_come_before_a_python_path_of_the_users() -> None:
    source = {**ARCHIVE, "requirements": "requirements.txt"}
    variable = {"name": "PYTHONPATH", "value": "/mine"}
    pod = pod_of({"source": source, "env": [variable]})
    assert variables(training(pod))["PYTHONPATH"] == f"{paths.PACKAGES_DIR}:/mine"


def test_the_init_container_has_what_the_user_gives_the_trainer_but_no_devices() -> None:
    resources = {
        "requests": {"cpu": "2", "nvidia.com/gpu": 1},
        "limits": {"memory": "1Gi", "nvidia.com/gpu": 1},
    }
    container = {"name": names.CONTAINER, "image": "mine", "resources": resources}
    index = {"name": "PIP_INDEX_URL", "value": "https://index.example/simple"}
    trainer = {
        "source": ARCHIVE,
        "env": [index],
        "envFrom": [{"secretRef": {"name": "token"}}],
        "volumes": [{"name": "ca", "mountPath": "/ca", "configMap": "authorities"}],
    }
    pod = pod_of(trainer, {"containers": [container], "initContainers": [{"name": "first"}]})
    first, fetching = pod["initContainers"]
    assert (first["name"], fetching["image"]) == ("first", "mine")
    assert fetching["resources"] == {"requests": {"cpu": "2"}, "limits": {"memory": "1Gi"}}
    assert variables(fetching)["PIP_INDEX_URL"] == index["value"]
    assert fetching["envFrom"] == [{"secretRef": {"name": "token"}}]
    assert mounts(fetching)["ca"] == ("/ca", True)
    assert "TF_CONFIG" not in variables(fetching)


def test_variables_are_added_to_those_of_a_template_and_the_template_wins() -> None:
    key = {"secretKeyRef": {"name": "store", "key": "token"}}
    trainer = {
        "env": [
            {"name": "A", "value": "trainer"},
            {"name": "B", "value": "$(A)"},
            {"name": "TOKEN", "valueFrom": key},
            {"name": "NCCL_DEBUG", "value": "INFO"},
        ],
        "envFrom": [{"prefix": "S_", "configMapRef": {"name": "all", "optional": True}}],
    }
    container = {
        "name": names.CONTAINER,
        "env": [{"name": "A", "value": "template"}],
        "envFrom": [{"secretRef": {"name": "mine"}}],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    container_of_trainer = training(pod_of(trainer, {"containers": [container]}))
    variables_of_trainer = variables(container_of_trainer)
    assert (
        variables_of_trainer["A"],
        variables_of_trainer["B"],
        variables_of_trainer["TOKEN"],
    ) == ("template", "$(A)", key)
    assert variables_of_trainer["NCCL_DEBUG"] == "INFO"
    assert container_of_trainer["envFrom"] == [
        {"prefix": "S_", "configMapRef": {"name": "all", "optional": True}},
        {"secretRef": {"name": "mine"}},
    ]


def test_volumes_are_mounted_in_every_replica() -> None:
    pod = pod_of(
        {
            "volumes": [
                {"name": "images", "mountPath": "/data", "claim": "images"},
                {"name": "kept", "mountPath": "/kept", "claim": "old", "readOnly": True},
                {"name": "key", "mountPath": "/key", "secret": "store"},
            ]
        }
    )
    pod_volumes = volumes(pod)
    assert pod_volumes["images"] == {"persistentVolumeClaim": {"claimName": "images"}}
    assert pod_volumes["key"] == {"secret": {"secretName": "store"}}
    shown = mounts(training(pod))
    assert (shown["images"], shown["kept"]) == (("/data", False), ("/kept", True))
    assert shown["key"] == ("/key", True)


def test_a_volume_of_the_template_with_the_same_name_stays() -> None:
    template = {"volumes": [{"name": "images", "emptyDir": {}}]}
    trainer = {"volumes": [{"name": "images", "mountPath": "/data", "claim": "images"}]}
    assert volumes(pod_of(trainer, template))["images"] == {"emptyDir": {}}


def test_a_path_where_the_template_mounts_something_is_refused() -> None:
    mounted = [{"name": "scratch", "mountPath": "/data/"}]
    container = {"name": names.CONTAINER, "volumeMounts": mounted}
    template = {"containers": [container], "volumes": [{"name": "scratch", "emptyDir": {}}]}
    trainer = {"volumes": [{"name": "images", "mountPath": "/data", "claim": "images"}]}
    with pytest.raises(load.SpecError, match=r"'images' of spec\.trainer\.volumes is: give one"):
        pod_of(trainer, template)


def test_images_are_pulled_with_the_secrets_of_job_and_template() -> None:
    template = {"imagePullSecrets": [{"name": "a"}]}
    pod = pod_of({"imagePullSecrets": ["a", "b"]}, copy.deepcopy(template))
    assert pod["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]


def test_what_only_pods_need_is_not_in_the_job_file() -> None:
    job = builders.a_job(
        trainer=True,
        spec={"trainer": {"epochs": 1, "env": [{"name": "A", "value": "very-secret"}]}},
        worker=1,
    )
    assert (
        "very-secret"
        not in config.manifest(layout.build(job), builders.SETTINGS)["data"]["job.json"]
    )


def test_a_volume_of_a_template_is_filled_where_it_is_mounted() -> None:
    container: Json = {
        "name": names.CONTAINER,
        "image": "mine",
        "volumeMounts": [
            {"name": "code", "mountPath": "/code", "readOnly": True},
            {"name": "data", "mountPath": "/data", "readOnly": True},
        ],
    }
    pod: Json = {
        "containers": [container],
        "initContainers": [{"name": "first"}],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "code", "configMap": {"name": "code"}},
        ],
    }
    mount = container["volumeMounts"][0]
    source = source_code.Source.model_validate(ARCHIVE)
    sources.fill(containers.ContainerBuilder(pod, container), mount, source)
    first, fetching = pod["initContainers"]
    assert first == {"name": "first"}
    assert fetching["command"][3:5] == ["--source", "/code"]
    assert mounts(fetching)["code"] == ("/code", False)
    assert mounts(fetching)["data"] == ("/data", True)
    assert mounts(container) == {"code": ("/code", True), "data": ("/data", True)}
    assert volumes(pod)["code"] == {"emptyDir": {}}
    assert volumes(pod)["data"] == {"persistentVolumeClaim": {"claimName": "data"}}
    assert "tfparallel-chunks" in volumes(pod)
