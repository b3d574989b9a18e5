"""Edits of every field of a job's spec: the jobs that they are made of, and what admits them."""

import copy
import dataclasses
import functools
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import cel

from tfparallel_operator.api import load, names, rules, schema, types

Path = tuple[str, ...]
"""A field by its keys; `<role>` stands for a role and `[]` for an item of a list."""


@dataclasses.dataclass(frozen=True)
class Example:
    """One edit: which job, and which value the field has then."""

    value: Any
    job: str = "gang"
    """A name in JOBS."""
    title: str = ""
    """What distinguishes it from other examples of the field."""


def _container(**fields: Any) -> dict[str, Any]:
    container = {"name": names.CONTAINER, "image": "older", "command": ["c"], **fields}
    return {"spec": {"containers": [container]}}


_MEMORY = {"limits": {"memory": "1Gi"}}
_WORKER = {"replicas": 2, "template": _container(resources=_MEMORY)}
_ELASTIC = {**_WORKER, "minReplicas": 1, "maxReplicas": 4}
_POLICY = {
    "ttlSecondsAfterFinished": 90_000,
    "activeDeadlineSeconds": 80_000,
    "cleanup": [{"when": "Succeeded", "afterSeconds": 600, "delete": "Pods"}],
    "pendingDeadlineSeconds": 2_000,
    "stallDeadlineSeconds": 2_000,
    "backoffLimit": 3,
    "scaleCooldownSeconds": 60,
    "failurePolicy": {
        "rules": [
            {
                "roles": ["Worker"],
                "exitCodes": [66],
                "causes": ["PermanentExit"],
                "action": "RestartGang",
            }
        ]
    },
    "outOfMemory": {"growthPercent": 100, "maxMemory": "64Gi"},
    "schedulingPolicy": {
        "minAvailable": 2,
        "minResources": {"cpu": 2},
        "priorityClass": "low",
        "scheduleTimeoutSeconds": 60,
    },
}
_GANG = {
    "tfReplicaSpecs": {"Worker": _ELASTIC, "Evaluator": {"template": _container()}},
    "scheduling": {"gang": "Coscheduling", "topologyKeys": ["rack"]},
    "runPolicy": _POLICY,
}
_CLAIM = {
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
}
JOBS: Mapping[str, dict[str, Any]] = {
    "gang": _GANG,
    "fixed": {**_GANG, "tfReplicaSpecs": {"Worker": _WORKER}},
    "servers": {
        "tfReplicaSpecs": {
            "Chief": {"template": _container()},
            "PS": {"template": _container()},
            "Worker": _ELASTIC,
        },
        "runPolicy": {"scaleCooldownSeconds": 60},
    },
    "volcano": {
        **_GANG,
        "scheduling": {"gang": "Volcano"},
        "runPolicy": {"schedulingPolicy": {"queue": "low"}},
    },
    "split": {
        "strategy": "ModelSplit",
        "mesh": {"stage": 2},
        "trainer": {"epochs": 1},
        "tfReplicaSpecs": {"Worker": {"replicas": 2}},
        "volumeClaimTemplates": [_CLAIM],
    },
}
"""Jobs by name; between them they give a value to every field whose edit is admitted."""

_ROLE: Path = ("tfReplicaSpecs", "<role>")
_RUN: Path = ("runPolicy",)
_RULE: Path = (*_RUN, "failurePolicy", "rules", "[]")
_STAGE: Path = (*_RUN, "cleanup", "[]")
_STARTS: Path = (*_RUN, "schedulingPolicy")

EXAMPLES: Mapping[Path, tuple[Example, ...]] = {
    ("tfReplicaSpecs",): (Example({"Worker": _ELASTIC}, title="(the roles)"),),
    (*_ROLE, "replicas"): (
        Example(3, "fixed"),
        Example(3, title="with `minReplicas` or `maxReplicas`"),
        Example(3, "servers", "with these, and `ParameterServer`"),
    ),
    (*_ROLE, "minReplicas"): (Example(2),),
    (*_ROLE, "maxReplicas"): (Example(3),),
    (*_ROLE, "restartPolicy"): (Example("Never"),),
    (*_ROLE, "devices"): (Example(2),),
    (*_ROLE, "template"): (Example(_container(image="newer", resources=_MEMORY)),),
    ("scheduling", "gang"): (Example("Volcano", "fixed"),),
    ("scheduling", "avoidFailedNodes"): (Example(False),),
    ("scheduling", "topologyKeys"): (Example(["zone"]),),
    (*_RUN, "cleanPodPolicy"): (Example("All"),),
    (*_RUN, "ttlSecondsAfterFinished"): (Example(1_000),),
    (*_RUN, "activeDeadlineSeconds"): (Example(5_000),),
    (*_STAGE, "when"): (Example("Failed"),),
    (*_STAGE, "afterSeconds"): (Example(3_000),),
    (*_STAGE, "delete"): (Example("Job"),),
    (*_RUN, "evaluatorGraceSeconds"): (Example(30),),
    (*_RUN, "pendingDeadlineSeconds"): (Example(500),),
    (*_RUN, "stallDeadlineSeconds"): (Example(500),),
    (*_RUN, "backoffLimit"): (Example(0),),
    (*_RULE, "roles"): (Example(["Evaluator"]),),
    (*_RULE, "exitCodes"): (Example([65]),),
    (*_RULE, "causes"): (Example(["Stall"]),),
    (*_RULE, "action"): (Example("FailJob"),),
    (*_RUN, "outOfMemory", "growthPercent"): (Example(50),),
    (*_RUN, "outOfMemory", "maxMemory"): (Example("1500Mi"),),
    (*_RUN, "suspend"): (Example(True, title="to `true`"), Example(False, title="to `false`")),
    (*_STARTS, "minAvailable"): (Example(1),),
    (*_STARTS, "queue"): (Example("high", "volcano"),),
    (*_STARTS, "minResources"): (Example({"cpu": 3}),),
    (*_STARTS, "priorityClass"): (Example("high"),),
    (*_STARTS, "scheduleTimeoutSeconds"): (Example(30),),
    (*_RUN, "scaleCooldownSeconds"): (Example(1_000),),
    ("successPolicy",): (Example("AllWorkers"),),
    ("onSeparateTraining",): (Example("Continue", "fixed"),),
    ("enableDynamicWorker",): (Example(True),),
}
"""The edits that are tried; a field without an example has another value, whatever it is."""


def fields() -> dict[Path, Mapping[str, Any]]:
    """Return every field of a spec that holds a value, by its schema, and the map of roles."""
    return dict(_walk((), schema.job_schema()["properties"]["spec"]))


def _walk(path: Path, node: Mapping[str, Any]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    if path == ("tfReplicaSpecs",):
        yield path, node
    if [rule["rule"] for rule in node.get(rules.VALIDATIONS, ())] == ["false"]:
        return  # A trap, which no job has.
    inner = {(*path, name): inner_node for name, inner_node in node.get("properties", {}).items()}
    if "properties" in node.get("additionalProperties", {}):
        inner[*path, "<role>"] = node["additionalProperties"]
    if "properties" in node.get("items", {}):
        inner[*path, "[]"] = node["items"]
    if not inner:
        yield path, node
    for inner_path, inner_node in inner.items():
        yield from _walk(inner_path, inner_node)


def examples(path: Path, node: Mapping[str, Any]) -> tuple[Example, ...]:
    """Return the edits of a field that are tried."""
    return EXAMPLES.get(path) or (Example(_another(node), "split"),)


def _another(node: Mapping[str, Any]) -> Any:
    """Return a value that no job of JOBS has."""
    if "enum" in node:
        return node["enum"][-1]
    match node.get("type"):
        case "boolean":
            return True
        case "integer" | "number":
            return 7
        case "array":
            return ["another"]
        case "object":
            return {"another": "another"}
        case _:
            return "another"


def document(job: str) -> dict[str, Any]:
    """Return the manifest of a job in JOBS."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "job", "namespace": "ns", "uid": "job-uid", "generation": 1},
        "spec": copy.deepcopy(JOBS[job]),
    }


def edited(before: Mapping[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """Return a manifest with another value of a field, and the generation of an edit."""
    after = copy.deepcopy(dict(before))
    after["metadata"]["generation"] += 1
    node: Any = after["spec"]
    for key, following in itertools.pairwise(path):
        key = "Worker" if key == "<role>" else key
        if key == "[]":
            node = node[0]
        elif following == "[]":
            node = node.setdefault(key, [{}])
        else:
            node = node.setdefault(key, {})
    node[path[-1]] = copy.deepcopy(value)
    return after


def refusal(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return why the API server refuses an edit by a rule between two versions; empty: it does
    not."""
    return _refusal(json.dumps(before["spec"]), json.dumps(after["spec"]))


@functools.cache
def _refusal(before: str, after: str) -> str:
    versions = cel.Context({"self": _with_defaults(after), "oldSelf": _with_defaults(before)})
    for entry in schema.job_schema()["properties"]["spec"][rules.VALIDATIONS]:
        if "oldSelf" in entry["rule"] and _program(entry["rule"]).execute(versions) is not True:
            return str(entry["message"])
    return ""


def _with_defaults(spec: str) -> Any:
    """Return a spec as the API server stores it."""
    return _filled(schema.job_schema()["properties"]["spec"], json.loads(spec))


def _filled(node: Mapping[str, Any], value: Any) -> Any:
    if isinstance(value, list):
        return [_filled(node.get("items", {}), item) for item in value]
    if not isinstance(value, Mapping):
        return value
    named = node.get("properties", {})
    defaults = {
        key: inner_node["default"] for key, inner_node in named.items() if "default" in inner_node
    }
    return {
        key: _filled(named.get(key, node.get("additionalProperties", {})), item)
        for key, item in {**defaults, **value}.items()
    }


@functools.cache
def _program(expression: str) -> Any:
    return cel.compile(expression)


def parse(manifest: Mapping[str, Any]) -> types.TFParallelJob:
    """Return a checked job, checked once for each manifest.

    Raises:
        load.SpecError: it is none.
    """
    return _parse(json.dumps(manifest))


@functools.cache
def _parse(manifest: str) -> types.TFParallelJob:
    return load.parse_job(json.loads(manifest))
