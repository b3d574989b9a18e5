"""Manifests of jobs for property tests: valid ones, and the same with mistakes anywhere."""

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

import hypothesis
from hypothesis import strategies

from testing.operator import builders, objects
from tfparallel_operator.api import schema

Body = dict[str, Any]
Place = tuple[str | int, ...]

_MOST_MISTAKES = 3
_TEMPLATE = "template"
"""Where the API server looks at nothing."""

METADATA: Body = {
    "name": "job",
    "generateName": "job-",
    "labels": {"team": "vision", "example.com/part": "A_b.c"},
    "annotations": {"example.com/note": "two words", "empty": ""},
    "finalizers": ["example.com/archive"],
    "creationTimestamp": None,
}

TRAINER: Body = {
    "module": "model.py",
    "epochs": 3,
    "globalBatchSize": 64,
    "seed": 0,
    "savedModel": True,
    "initialWeights": "s3://bucket/weights.keras",
    "checkpoint": {"claim": "state", "everySteps": 10, "keep": 1},
    "source": {"configMap": {"name": "code"}, "requirements": "requirements.txt"},
    "env": [
        {"name": "A", "value": ""},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "store", "key": "token"}}},
        {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": 1}}},
    ],
    "envFrom": [{"prefix": "S_", "secretRef": {"name": "all", "optional": True}}],
    "volumes": [{"name": "data", "mountPath": "/data", "claim": "data", "readOnly": True}],
    "imagePullSecrets": ["registry"],
}
RUN_POLICY: Body = {
    "cleanPodPolicy": "All",
    "ttlSecondsAfterFinished": 0,
    "activeDeadlineSeconds": 3600,
    "backoffLimit": 0,
    "suspend": False,
    "managedBy": "kueue.x-k8s.io/multikueue",
    "cleanup": [{"when": "Failed", "afterSeconds": 86400, "delete": "Job"}],
    "failurePolicy": {
        "rules": [
            {"action": "Ignore", "roles": ["Worker"], "exitCodes": [1, 255]},
            {"action": "FailJob", "causes": ["OutOfMemory"]},
        ]
    },
    "outOfMemory": {"growthPercent": 50, "maxMemory": "64Gi"},
    "schedulingPolicy": {"minAvailable": 1, "minResources": {"cpu": 4, "memory": "8Gi"}},
}
CLAIM: Body = {
    "metadata": {"name": "state", "labels": {"team": "vision"}, "annotations": {}},
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "",
        "resources": {"requests": {"storage": "10Gi"}},
        "volumeMode": "Filesystem",
    },
}


def _job(roles: Mapping[str, Any], **spec: Any) -> Body:
    return {
        "apiVersion": "tfparallel.dev/v1alpha1",
        "kind": "TFParallelJob",
        "metadata": {"name": "job"},
        "spec": {"tfReplicaSpecs": dict(roles), **spec},
    }


def _seeds() -> list[Body]:
    """Return valid jobs that have every field of the spec but the traps between them."""
    worker = {"replicas": 2, "minReplicas": 1, "maxReplicas": 3, "restartPolicy": "ExitCode"}
    whole = _job(
        {"Chief": {"devices": 2}, "Worker": worker, "Evaluator": None},
        strategy="MultiWorkerMirrored",
        trainer=TRAINER,
        runPolicy=RUN_POLICY,
        volumeClaimTemplates=[CLAIM],
        persistentVolumeClaimRetentionPolicy={"whenDeleted": "Delete"},
        scheduling={"gang": "Coscheduling", "topologyKeys": ["topology.kubernetes.io/zone"]},
        network="Open",
        hostNetwork=True,
        successPolicy="AllWorkers",
        enableDynamicWorker=False,
    )
    mesh = {"data": 2, "stage": -1, "tensor": 2, "microbatches": 2, "schedule": "GPipe"}
    split = {"strategy": "ModelSplit", "trainer": {"steps": 10}}
    servers = {"Master": {}, "Worker": {"replicas": 3}, "PS": {"replicas": 2}, "Evaluator": {}}
    asynchronous = {"steps": 7, "maxStaleness": 0, "checkpoint": {"uri": "s3://bucket/a"}}
    return [
        {**whole, "metadata": METADATA},
        objects.job(),
        builders.manifest(trainer=True, worker=1),
        _job(servers, strategy="ParameterServer", trainer=asynchronous),
        _job({"Worker": {"replicas": 2, "devices": 4}}, mesh=mesh, **split),
        _job({"Chief": {}, "Worker": {"replicas": 3}}, mesh={"auto": True}, **split),
        _job({"Worker": {"replicas": 2}}, mesh={"stage": 2, "cuts": ["dense"]}, **split),
    ]


SEEDS = _seeds()

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 64, 5001, 2**31 - 1, 2**31, 2**63 - 1, 2**63),
    *(1.0, 1.5, -0.0, 1e17, "", "1", "true", "yes", "a", "A b", "é", "1Gi", "x" * 64, "x" * 254),
    *("line\n", [], [None], ["a"], ["a", "a"], [1], {}, {"a": 1}, {"a": "b"}, {"name": "a"}),
)
"""Values of every type, near the bounds of the schema."""


@strategies.composite
def jobs(draw: strategies.DrawFn) -> Body:
    """Generate a manifest: mostly with mistakes, most of them small."""
    document = copy.deepcopy(draw(strategies.sampled_from(SEEDS)))
    for kind in draw(strategies.lists(_KINDS, max_size=_MOST_MISTAKES)):
        kind(draw, document)
    return document


def collect(count: int, seed: int) -> list[Body]:
    """Return jobs that Hypothesis generates from a seed, for what cannot run once for each."""
    examples: list[Body] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(jobs())
    def take(job: Body) -> None:
        examples.append(job)

    take()
    return examples


def _set_field(draw: strategies.DrawFn, document: Body) -> None:
    """Give a field of the schema a value, mostly of its type."""
    node: Any = document.get("spec")
    schema_node: Mapping[str, Any] = schema.job_schema()["properties"]["spec"]
    while True:
        properties = schema_node.get("properties", {})
        if isinstance(node, dict) and properties:
            key = draw(strategies.sampled_from(sorted(properties.keys())))
            inner = properties[key]
        elif isinstance(node, dict) and isinstance(
            schema_node.get("additionalProperties"), Mapping
        ):
            key = draw(strategies.sampled_from([*node, "PS", "Worker", "a"]))
            inner = schema_node["additionalProperties"]
        elif isinstance(node, list) and node and "items" in schema_node:
            key = draw(strategies.integers(0, len(node) - 1))
            inner = schema_node["items"]
        else:
            return
        is_there = isinstance(node, list) or key in node
        if not is_there or not isinstance(node[key], dict | list) or draw(_SELDOM):
            node[key] = draw(_ODD if draw(_SELDOM) else _values(inner))
            return
        node, schema_node = node[key], inner


_NAMES = strategies.from_regex(re.compile(r"\A[a-z0-9A.-]{0,3}(a{0,70}|-)[a-z0-9-]{0,2}\Z"))
_ODD = strategies.sampled_from(ODD).map(copy.deepcopy)
_SELDOM = strategies.integers(0, 5).map(lambda number: number == 0)


def _values(node: Mapping[str, Any]) -> strategies.SearchStrategy[Any]:
    """Generate values of a schema, some of them just outside of its bounds."""
    if "enum" in node:
        return strategies.sampled_from([*node["enum"], str(node["enum"][0]).swapcase()])
    match node.get("type"):
        case "boolean":
            return strategies.booleans()
        case "integer":
            least, most = node.get("minimum", 0), node.get("maximum", 2**31)
            inside = strategies.sampled_from(sorted({least, min(least + 2, most), most}))
            return inside | strategies.sampled_from((1, 2, 3, 4, least - 1, most + 1))
        case "string":
            if "pattern" in node:
                return strategies.from_regex(re.compile(node["pattern"], re.ASCII))
            longest = node.get("maxLength", 80)
            return strategies.text("aZ0-./ é", max_size=9) | strategies.just("a" * (longest + 1))
        case "array":
            return strategies.lists(_values(node["items"]), max_size=3)
        case "object" if "properties" in node:
            fields = {key: _values(inner) for key, inner in node["properties"].items()}
            required = {key: fields.pop(key) for key in node.get("required", ())}
            return strategies.fixed_dictionaries(required, optional=fields)
        case "object" if isinstance(node.get("additionalProperties"), Mapping):
            keys = strategies.sampled_from(("a", "cpu", "Worker", "PS", "a b"))
            return strategies.dictionaries(keys, _values(node["additionalProperties"]), max_size=3)
        case "object":
            return strategies.just({})
    return strategies.sampled_from((0, 1, -1, 2.0, "1Gi", "500m", "", True, 1.5))


def _replace(draw: strategies.DrawFn, document: Body) -> None:
    """Give a field that is there a value of any type, or remove it."""
    *outer, last = draw(strategies.sampled_from(list(_places(document))))
    node = _at(document, tuple(outer))
    if draw(strategies.booleans()):
        node[last] = draw(_ODD)
    else:
        del node[last]


def _name(draw: strategies.DrawFn, document: Body) -> None:
    """Name the job, or let the API server name it, near the bounds of what names may be."""
    metadata = document.get("metadata")
    if isinstance(metadata, dict):
        metadata.pop("name", None)
        metadata[draw(strategies.sampled_from(("name", "name", "generateName")))] = draw(_NAMES)


def _rename(draw: strategies.DrawFn, document: Body) -> None:
    """Write the name of a field in another way."""
    named = [path for path in _places(document) if isinstance(path[-1], str)]
    if not named:
        return
    *outer, last = draw(strategies.sampled_from(named))
    snake_case = re.sub("([A-Z])", r"_\1", str(last)).lower()
    names = (snake_case, str(last).lower(), str(last).upper(), f"{last}s", f" {last}", "")
    node = _at(document, tuple(outer))
    node[draw(strategies.sampled_from(names))] = node.pop(last)


def _nest(draw: strategies.DrawFn, document: Body) -> None:
    """Put a value into a list or a mapping, or another value of the job in its place."""
    places = list(_places(document))
    *outer, last = draw(strategies.sampled_from(places))
    node = _at(document, tuple(outer))
    other = copy.deepcopy(_at(document, draw(strategies.sampled_from(places))))
    node[last] = draw(strategies.sampled_from(([node[last]], {"value": node[last]}, other)))


def _places(node: Any, path: Place = ()) -> Iterator[Place]:
    """Yield the places of all values of a document but those inside of templates."""
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, dict | list) and key != _TEMPLATE:
            yield from _places(inner, (*path, key))


def _at(document: Any, path: Place) -> Any:
    for part in path:
        document = document[part]
    return document


def has_template(document: Any) -> bool:
    """Say whether a job has a template, into which the API server does not look."""
    return any(path[-1] == _TEMPLATE for path in _places(document))


_KINDS = strategies.sampled_from(
    (_set_field, _set_field, _set_field, _replace, _rename, _nest, _name)
)
