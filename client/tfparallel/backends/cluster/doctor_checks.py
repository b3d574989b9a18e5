"""Checks, one by one, whether a cluster has what jobs need."""

import dataclasses
import enum
import importlib.metadata
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from tfparallel import errors
from tfparallel.backends.cluster import cluster_backend, objects, refusals
from tfparallel_operator.api import accelerators, names, schema
from tfparallel_operator.api_server import errors as api_errors
from tfparallel_operator.api_server import resources

MINORS = range(34, 38)
"""The minor versions of Kubernetes 1 that are supported."""

_CRDS = resources.Resource("apiextensions.k8s.io/v1", "customresourcedefinitions")
_REVIEWS = resources.Resource("authorization.k8s.io/v1", "selfsubjectaccessreviews")
_STORAGE_CLASSES = resources.Resource("storage.k8s.io/v1", "storageclasses")
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_RIGHTS = (
    *((verb, names.GROUP, names.PLURAL, "") for verb in ("create", "get", "list", "watch")),
    *((verb, names.GROUP, names.PLURAL, "") for verb in ("patch", "delete")),
    ("create", "", "configmaps", ""),
    ("patch", "", "configmaps", ""),
    ("get", "", "pods", "log"),
    ("list", "", "pods", ""),
    ("create", "", "pods", ""),
    ("delete", "", "pods", ""),
    ("create", "", "pods", "exec"),
    ("create", "", "persistentvolumeclaims", ""),
    ("get", "", "persistentvolumeclaims", ""),
    ("list", "events.k8s.io", "events", ""),
)
"""Rights that the verbs of the command need."""

_AS_INSTALLED = "helm upgrade or kubectl apply -k, as you installed it"
_UPGRADE_OPERATOR = f"Upgrade the operator ({_AS_INSTALLED})"
_UPGRADE_DEFINITION = f"Upgrade the resource definition with the operator ({_AS_INSTALLED})"
_UPGRADE_CLIENT = "pipx upgrade tfparallel"


class CheckResult(enum.StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"


Action = Callable[[cluster_backend.ClusterBackend], Awaitable[tuple[CheckResult, str]]]
"""Checks one requirement of a cluster."""


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """A row of the table."""

    name: str
    result: CheckResult
    text: str
    """What the check found, with a remedy if the result is not ok."""


async def check(
    cluster: cluster_backend.ClusterBackend, actions: Mapping[str, Action]
) -> AsyncIterator[Check]:
    """Yield the checks of a cluster; if it does not answer, only the first."""
    try:
        with refusals.explained(cluster.context):
            version = await cluster.api.get("/version")
    except errors.Failure as error:
        yield Check("API server", CheckResult.MISSING, str(error))
        return
    yield _version(version)
    for name, action in actions.items():
        try:
            result, text = await action(cluster)
            yield Check(name, result, text)
        except api_errors.ApiError as error:
            yield Check(
                name, CheckResult.WARNING, f"not known: {refusals.sentence(error, cluster.context)}"
            )


def _version(version: dict[str, Any]) -> Check:
    text = str(version.get("gitVersion"))
    minor = "".join(filter(str.isdecimal, str(version.get("minor"))))
    if version.get("major") == "1" and minor and int(minor) in MINORS:
        return Check("API server", CheckResult.OK, text)
    supported = f"1.{MINORS[0]} to 1.{MINORS[-1]}"
    return Check(
        "API server", CheckResult.WARNING, f"{text}: {supported} are supported. Upgrade the cluster"
    )


async def _definition(cluster: cluster_backend.ClusterBackend) -> tuple[CheckResult, str]:
    name = f"{names.PLURAL}.{names.GROUP}"
    try:
        installed = await cluster.api.get(_CRDS.path(None, name))
    except api_errors.NotFound:
        return CheckResult.MISSING, f"not installed. Install the operator: {refusals.INSTALL}"
    schemas = {served["name"]: served["schema"] for served in installed["spec"]["versions"]}
    if schemas.get(names.VERSION) == {"openAPIV3Schema": schema.job_schema()}:
        return CheckResult.OK, f"{names.VERSION}, of this version"
    version = objects.installed_version(installed)
    text = f"{names.VERSION}, of {version or 'an unknown version'}"
    return CheckResult.WARNING, f"{text}. It is {_advice(version, _UPGRADE_DEFINITION)}"


async def _operator(cluster: cluster_backend.ClusterBackend) -> tuple[CheckResult, str]:
    operators = await cluster.list_operators()
    if operators is None:
        return (
            CheckResult.WARNING,
            "not known: you may not list deployments. Ask your administrator",
        )
    if not operators:
        return CheckResult.MISSING, f"no Deployment. Install it: {refusals.INSTALL}"
    [first, *_] = operators
    version = f" {first.version}" if first.version else ""
    text = f"{first.namespace}/{first.name}{version}: {first.ready}/{first.replicas} ready"
    if not first.ready:
        remedy = f"kubectl -n {first.namespace} describe deployment {first.name}"
        return CheckResult.MISSING, f"{text}. See why: {remedy}"
    if first.version and _numbers(first.version) != _numbers(client_version()):
        return CheckResult.WARNING, f"{text}. It is {_advice(first.version, _UPGRADE_OPERATOR)}"
    return CheckResult.OK, text


def client_version() -> str:
    """Return the version of this command."""
    return importlib.metadata.version("tfparallel")


def _advice(installed: str, upgrade: str) -> str:
    """Return whether this command or the installation is older, and how to upgrade it."""
    ours = client_version()
    if _numbers(installed) > _numbers(ours):
        return f"newer than this command, {ours}. Upgrade the command: {_UPGRADE_CLIENT}"
    if installed and _numbers(installed) < _numbers(ours):
        return f"older than this command, {ours}. {upgrade}"
    return f"not that of this command, {ours}. {upgrade}, or this command: {_UPGRADE_CLIENT}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


async def _rights(cluster: cluster_backend.ClusterBackend) -> tuple[CheckResult, str]:
    lacking = []
    for verb, group, resource, subresource in _RIGHTS:
        attributes = {"namespace": cluster.namespace, "verb": verb, "group": group}
        attributes |= {"resource": resource, "subresource": subresource}
        review = {"spec": {"resourceAttributes": attributes}}
        answer = await cluster.api.create(_REVIEWS, None, review)
        if not answer["status"]["allowed"]:
            lacking.append(f"{verb} {'/'.join(filter(None, (resource, subresource)))}")
    if lacking:
        return CheckResult.MISSING, (
            f"you may not {', '.join(lacking)} in namespace {cluster.namespace!r}. Ask for a Role"
            " with them"
        )
    return CheckResult.OK, f"all in namespace {cluster.namespace!r}"


async def _storage_class(cluster: cluster_backend.ClusterBackend) -> tuple[CheckResult, str]:
    for storage_class in (await cluster.api.list(_STORAGE_CLASSES, None)).items:
        if storage_class["metadata"].get("annotations", {}).get(_DEFAULT_CLASS) == "true":
            return CheckResult.OK, storage_class["metadata"]["name"]
    return (
        CheckResult.WARNING,
        "no default. Name a storageClassName in each claim, or set a default",
    )


async def _gpus(cluster: cluster_backend.ClusterBackend) -> tuple[CheckResult, str]:
    nodes = (await cluster.api.list(resources.NODES, None)).items
    counts = [accelerators.count(node["status"].get("allocatable", {})) for node in nodes]
    with_gpus = sum(map(bool, counts))
    return CheckResult.OK, f"{sum(counts)} on {with_gpus} of {len(nodes)} nodes"


VERSIONS: Mapping[str, Action] = {"resource definition": _definition, "operator": _operator}
"""The checks of installed versions."""

ALL: Mapping[str, Action] = {
    **VERSIONS,
    "rights": _rights,
    "storage class": _storage_class,
    "GPUs": _gpus,
}
