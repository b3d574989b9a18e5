"""From a TFJob to a TFParallelJob: values in, values out."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tfparallel.convert import template
from tfparallel.convert.differences import Difference
from tfparallel_operator.api import load, names, types

KIND = "TFJob"
GROUP = "kubeflow.org"

VERSIONS = {
    "v1": types.CleanPodPolicy.NONE,
    "v1beta2": types.CleanPodPolicy.RUNNING,
    "v1beta1": types.CleanPodPolicy.RUNNING,
    "v1alpha2": types.CleanPodPolicy.RUNNING,
}
"""The versions of TFJob that are converted, and what an absent cleanPodPolicy means in each."""

UNLIMITED = 2**31 - 1
"""As backoffLimit: never reached."""

_OWN_MANAGER = "kubeflow.org/training-operator"
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_METADATA = ("name", "generateName", "namespace", "labels", "annotations")
_SPEC = ("runPolicy", "successPolicy", "tfReplicaSpecs", "enableDynamicWorker")
_MISPLACED = ("cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit")
_SCHEDULING_POLICY = (
    "minAvailable",
    "queue",
    "minResources",
    "priorityClass",
    "scheduleTimeoutSeconds",
)
_RUN_POLICY = (*_MISPLACED, "schedulingPolicy", "suspend", "managedBy")
_REPLICA = ("replicas", "restartPolicy", "template")
_ROLES = {role.value.casefold(): role for role in types.Role}

Fields = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Notice:
    """A difference that concerns a job."""

    field: str
    difference: Difference
    received: str = ""
    """Which of several fields, or which value, where the field does not tell."""

    def __str__(self) -> str:
        row = self.difference.value
        given = f" ({self.received})" if self.received else ""
        text = f"{row.subject}{given}: TFJob: {row.theirs}; here: {row.ours}; convert {row.done}"
        return f"{self.field}: {text.replace('`', '')}"


@dataclasses.dataclass(frozen=True, slots=True)
class Converted:
    """The job, and what it does otherwise than the TFJob."""

    document: Fields
    notices: tuple[Notice, ...]


def convert(document: Mapping[str, Any], *, write_defaults: bool) -> Converted:
    """Return a checked TFParallelJob that means what the TFJob means.

    Args:
        document: the manifest of a TFJob; it is not changed.
        write_defaults: whether TFJob's defaults are written for fields that it leaves out.

    Raises:
        load.SpecError: the version is too old, or nothing here means what the TFJob says.
    """
    return _Conversion(_version(document), write_defaults).convert(document)


def _version(document: Mapping[str, Any]) -> str:
    given = str(document.get("apiVersion"))
    group, _, version = given.partition("/")
    if group != GROUP or version not in VERSIONS:
        known = ", ".join(f"{GROUP}/{one}" for one in VERSIONS)
        raise load.SpecError(
            f"apiVersion: received {given!r}; only {known} are converted: write the roles below"
            " spec.tfReplicaSpecs, as these versions have them, and convert again"
        )
    return version


class _Conversion:
    """One conversion; it gathers the notices on its way."""

    def __init__(self, version: str, write_defaults: bool) -> None:
        self._clean_pod_policy = VERSIONS[version].value
        self._write_defaults = write_defaults
        self._notices: list[Notice] = []

    def convert(self, document: Mapping[str, Any]) -> Converted:
        made: Fields = {}
        for key, value in document.items():
            match key:
                case "apiVersion":
                    made[key] = names.API_VERSION
                case "kind":
                    made[key] = names.KIND
                case "metadata":
                    made[key] = self._metadata(_fields(value, key))
                case "spec":
                    made[key] = self._spec(_fields(value, key))
                case "status":
                    self._note(key, Difference.EXPORTED)
                case _:
                    self._note(key, Difference.UNKNOWN)
        _check(made)
        return Converted(made, tuple(self._notices))

    def _note(self, field: str, difference: Difference, received: str = "") -> None:
        self._notices.append(Notice(field, difference, received))

    def _known(
        self, given: Mapping[str, Any], known: tuple[str, ...], field: str, difference: Difference
    ) -> Fields:
        """Return the fields that are known and not null, and tell of the others."""
        others = [str(key) for key in given if key not in known]
        if others:
            self._note(field, difference, ", ".join(others))
        return {key: value for key, value in given.items() if key in known and value is not None}

    def _metadata(self, given: Fields) -> Fields:
        made = self._known(given, _METADATA, "metadata", Difference.EXPORTED)
        for field in ("labels", "annotations"):
            if field in made:
                kept = _fields(made[field], f"metadata.{field}")
                made[field] = {key: value for key, value in kept.items() if key != _LAST_APPLIED}
                if not made[field]:
                    del made[field]
        if names.LABEL_QUEUE in made.get("labels", {}):
            self._note("metadata.labels", Difference.QUEUE)
        return made

    def _spec(self, given: Fields) -> Fields:
        spec = self._known(given, (*_SPEC, *_MISPLACED), "spec", Difference.UNKNOWN)
        misplaced = {key: spec.pop(key) for key in _MISPLACED if key in spec}
        if misplaced:
            self._note("spec", Difference.MISPLACED, ", ".join(misplaced))
        spec["tfReplicaSpecs"] = roles = self._roles(spec.get("tfReplicaSpecs"))
        policy = {**misplaced, **_fields(spec.get("runPolicy"), "spec.runPolicy")}
        policy = self._run_policy(policy, roles)
        if "runPolicy" not in spec:
            spec = {"runPolicy": {}, **spec}
        spec["runPolicy"] = policy
        if not policy:
            del spec["runPolicy"]
        word = spec.get("successPolicy")
        if word is not None and word not in list(types.SuccessPolicy):
            del spec["successPolicy"]
            self._note("spec.successPolicy", Difference.SUCCESS_WORD, repr(word))
        return spec

    def _run_policy(self, given: Fields, roles: Fields) -> Fields:
        field = "spec.runPolicy"
        policy = self._known(given, _RUN_POLICY, field, Difference.UNKNOWN)
        if "schedulingPolicy" in policy:
            together = f"{field}.schedulingPolicy"
            given = _fields(policy["schedulingPolicy"], together)
            given = {key: value for key, value in given.items() if value not in ("", {})}
            known = self._known(given, _SCHEDULING_POLICY, together, Difference.UNKNOWN)
            policy["schedulingPolicy"] = known
            self._note(together, Difference.SCHEDULING_POLICY)
        if policy.get("managedBy") == _OWN_MANAGER:
            del policy["managedBy"]
            self._note(f"{field}.managedBy", Difference.MANAGED_BY)
        if "activeDeadlineSeconds" in policy:
            self._note(f"{field}.activeDeadlineSeconds", Difference.DEADLINE)
        word = policy.get("cleanPodPolicy")
        if word is not None and word not in list(types.CleanPodPolicy):
            policy["cleanPodPolicy"] = types.CleanPodPolicy.ALL.value
            self._note(f"{field}.cleanPodPolicy", Difference.CLEAN_WORD, repr(word))
        if word is None and self._write_defaults:
            policy["cleanPodPolicy"] = self._clean_pod_policy
            self._note(f"{field}.cleanPodPolicy", Difference.CLEAN_POD_POLICY)
        policies = [role.get("restartPolicy") for role in roles.values()]
        restarts = any(one not in (None, types.RestartPolicy.NEVER.value) for one in policies)
        if "backoffLimit" in policy:
            self._note(f"{field}.backoffLimit", Difference.COUNTED)
        elif restarts and self._write_defaults:
            policy["backoffLimit"] = UNLIMITED
            self._note(f"{field}.backoffLimit", Difference.BACKOFF_LIMIT)
        if restarts and types.Role.PS not in roles and _count(roles) > 1:
            self._note("spec.tfReplicaSpecs", Difference.TOGETHER)
        return policy

    def _roles(self, given: Any) -> Fields:
        place = "spec.tfReplicaSpecs"
        named: Fields = {}
        for key, value in _fields(given, place).items():
            role = _ROLES.get(str(key).casefold())
            if role is None:
                known = ", ".join(types.Role)
                raise load.SpecError(f"{place}.{key}: no role of TFJob; the roles are {known}")
            if role.value in named:
                raise load.SpecError(f"{place}.{key}: given twice as {role}; remove one of them")
            if key != role.value:
                self._note(f"{place}.{key}", Difference.ROLE_KEYS)
            named[role.value] = _fields(value, f"{place}.{key}")
        made = {}
        for role_key, one in named.items():
            if one.get("replicas") == 0:
                self._note(f"{place}.{role_key}", Difference.NO_REPLICAS)
            else:
                made[role_key] = self._role(role_key, one, sets_tf_config=_count(named) != 1)
        self._tell_of_roles(made)
        return made

    def _role(self, key: str, given: Fields, *, sets_tf_config: bool) -> Fields:
        field = f"spec.tfReplicaSpecs.{key}"
        role = self._known(given, _REPLICA, field, Difference.UNKNOWN)
        policy = role.get("restartPolicy")
        if not policy:
            role.pop("restartPolicy", None)
            if self._write_defaults:
                role["restartPolicy"] = types.RestartPolicy.NEVER.value
                self._note(field, Difference.RESTART_POLICY)
        elif policy == types.RestartPolicy.ALWAYS.value:
            self._note(f"{field}.restartPolicy", Difference.ALWAYS)
        if "template" in role:
            place = f"{field}.template"
            role["template"], found = template.convert(
                role["template"], place, sets_tf_config=sets_tf_config
            )
            for where, difference in found:
                self._note(where, difference)
        return role

    def _tell_of_roles(self, roles: Fields) -> None:
        place = "spec.tfReplicaSpecs"
        if types.Role.EVALUATOR in roles:
            self._note(f"{place}.Evaluator", Difference.EVALUATOR_FAILS)
            self._note(f"{place}.Evaluator", Difference.EVALUATOR_GRACE)
            self._note(f"{place}.Evaluator", Difference.EVALUATOR_ADDRESS)
        if types.Role.MASTER in roles:
            self._note(f"{place}.Master", Difference.MASTER)
        elif types.Role.PS in roles and types.Role.CHIEF not in roles:
            self._note(f"{place}.PS", Difference.SERVERS)
        if _count(roles) == 1:
            self._note(place, Difference.ONE_REPLICA)


def _fields(value: Any, field: str) -> Fields:
    """Return a mapping as it is, and nothing as an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise load.SpecError(f"{field}: received {value!r:.60}; write fields")
    return dict(value)


def _count(roles: Fields) -> int:
    """How many replicas there are, as far as they are numbers."""
    given = [role.get("replicas") for role in roles.values()]
    return sum(
        1 if number is None else number for number in given if isinstance(number, int | None)
    )


def _check(made: Fields) -> None:
    """See that the operator would take the job; one that the API server names gets a name here."""
    metadata = made.get("metadata", {})
    if "name" not in metadata and metadata.get("generateName"):
        metadata = {**metadata, "name": f"{metadata['generateName']}00000"}
    load.parse_job({**made, "metadata": metadata})
