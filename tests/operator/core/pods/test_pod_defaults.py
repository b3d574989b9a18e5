"""What the installation gives to the pods of all jobs."""

import dataclasses
from typing import Any

import pytest

from testing.operator import builders
from tfparallel_operator.api import types
from tfparallel_operator.core import replicas
from tfparallel_operator.core.pods import pod_defaults

WORKER = replicas.Replica(types.Role.WORKER, 0)


def a_pod(defaults: dict[str, Any], **job: Any) -> dict[str, Any]:
    settings = dataclasses.replace(builders.SETTINGS, pod_defaults=defaults)
    return builders.a_pod(builders.a_job(trainer=True, worker=1, **job), WORKER, settings)


@pytest.mark.parametrize(
    ("default", "value", "merged"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": {"x": 1, "y": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]},
         {"tolerations": [{"key": "a"}, {"key": "b"}]}),
        ({"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b"}]},
         {"volumes": [{"name": "a", "configMap": {}}]},
         {"volumes": [{"name": "a", "configMap": {}}, {"name": "b"}]}),
        ({"env": [{"name": "A"}, {"name": "B", "value": "$(A)"}]},
         {"env": [{"name": "C"}, {"name": "A", "value": "job"}]},
         {"env": [{"name": "A", "value": "job"}, {"name": "B", "value": "$(A)"}, {"name": "C"}]}),
        ({"volumeMounts": [{"name": "a", "mountPath": "/a"}]},
         {"volumeMounts": [{"name": "a", "mountPath": "/b"}]},
         {"volumeMounts": [{"name": "a", "mountPath": "/a"}, {"name": "a", "mountPath": "/b"}]}),
        ({"containers": [{"name": "tensorflow", "env": [{"name": "A"}]}, {"name": "log"}]},
         {"containers": [{"name": "mine"}, {"name": "tensorflow", "env": [{"name": "B"}]}]},
         {"containers": [
             {"name": "tensorflow", "env": [{"name": "A"}, {"name": "B"}]},
             {"name": "log"},
             {"name": "mine"},
         ]}),
    ],
)  # fmt: skip
def test_templates_merge(
    default: dict[str, Any], value: dict[str, Any], merged: dict[str, Any]
) -> None:
    assert pod_defaults.merge(default, value) == merged


def test_pods_of_the_shipped_trainer_have_the_defaults() -> None:
    tolerations, volumes = [{"key": "gpu", "operator": "Exists"}], [{"name": "ca", "configMap": {}}]
    container: dict[str, Any] = {
        "name": "tensorflow",
        "env": [{"name": "HTTPS_PROXY", "value": "proxy:3128"}],
        "volumeMounts": [{"name": "ca", "mountPath": "/ca"}],
        "securityContext": {"runAsUser": 1000},
    }
    spec = {"tolerations": tolerations, "volumes": volumes, "containers": [container]}
    pod = a_pod({"metadata": {"labels": {"team": "vision"}}, "spec": spec})
    assert pod["metadata"]["labels"]["team"] == "vision"
    assert pod["spec"]["tolerations"] == tolerations
    assert volumes[0] in pod["spec"]["volumes"]
    [trains] = pod["spec"]["containers"]
    assert container["env"][0] in trains["env"]
    assert container["volumeMounts"][0] in trains["volumeMounts"]
    assert trains["securityContext"] == container["securityContext"]
    assert trains["image"] == builders.SETTINGS.trainer_image


def test_what_a_job_says_wins() -> None:
    labels = {"tfparallel.dev/job-name": "another"}
    container = {"name": "tensorflow", "env": [{"name": "LEVEL", "value": "default"}]}
    defaults = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    trainer = builders.a_manifest(trainer=True, worker=1)["spec"]["trainer"]
    trainer["env"] = [{"name": "LEVEL", "value": "job"}]
    pod = a_pod(defaults, spec={"trainer": trainer})
    assert pod["metadata"]["labels"]["tfparallel.dev/job-name"] == "job"
    variables = {
        variable["name"]: variable.get("value") for variable in pod["spec"]["containers"][0]["env"]
    }
    assert variables["LEVEL"] == "job"


def test_defaults_are_not_changed() -> None:
    defaults = {"spec": {"containers": [{"name": "tensorflow"}], "volumes": []}}
    a_pod(defaults)
    assert defaults == {"spec": {"containers": [{"name": "tensorflow"}], "volumes": []}}
