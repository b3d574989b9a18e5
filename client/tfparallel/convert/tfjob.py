"""From a TFJob to a TFParallelJob: values in, values out."""

from collections.abc import Mapping
from typing import Any

from tfparallel.convert import conversion, template
from tfparallel.convert.tfjob_differences import TFJobDifference
from tfparallel_operator.api import load, names, types

KIND = "TFJob"

VERSIONS = {
    "kubeflow.org/v1": types.CleanPodPolicy.NONE,
    "kubeflow.org/v1beta2": types.CleanPodPolicy.RUNNING,
    "kubeflow.org/v1beta1": types.CleanPodPolicy.RUNNING,
    "kubeflow.org/v1alpha2": types.CleanPodPolicy.RUNNING,
}
"""The versions of TFJob that are converted, and what an absent cleanPodPolicy means in each."""

UNLIMITED = 1_000_000
"""As backoffLimit: never reached, because restarts wait longer and longer."""

_TRAINING_OPERATOR = "kubeflow.org/training-operator"
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
_ROLES_FIELD = "spec.tfReplicaSpecs"


def convert(document: Mapping[str, Any], *, write_defaults: bool) -> conversion.Converted:
    """Return a checked TFParallelJob that means what the TFJob means.

    Args:
        document: the manifest of a TFJob; it is not changed.
        write_defaults: whether TFJob's defaults are written for fields that it leaves out.

    Raises:
        load.SpecError: the version is unknown, or nothing here means what the TFJob says.
    """
    api_version = str(document.get("apiVersion"))
    if api_version not in VERSIONS:
        raise load.SpecError(
            f"apiVersion: received {api_version!r}; write the roles below {_ROLES_FIELD}, as"
            " kubeflow.org/v1 has them, and convert again"
        )
    return _Conversion(VERSIONS[api_version], write_defaults).convert(document)


class _Conversion:
    """One conversion; its recorder gathers the differences on the way."""

    def __init__(self, clean_pod_policy: types.CleanPodPolicy, write_defaults: bool) -> None:
        self._clean_pod_policy = clean_pod_policy.value
        self._write_defaults = write_defaults
        self._recorder = conversion.Recorder()
        self._note = self._recorder.note
        self._name = ""

    def convert(self, document: Mapping[str, Any]) -> conversion.Converted:
        metadata = self._recorder.metadata(document.get("metadata"), TFJobDifference.EXPORTED)
        if names.LABEL_QUEUE in metadata.get("labels", {}):
            self._note("metadata.labels", TFJobDifference.QUEUE)
        self._name = str(metadata.get("name") or "")
        job: conversion.Fields = {}
        for key, value in document.items():
            match key:
                case "apiVersion":
                    job[key] = names.API_VERSION
                case "kind":
                    job[key] = names.KIND
                case "metadata":
                    job[key] = metadata
                case "spec":
                    job[key] = self._spec(conversion.fields(value, key))
                case "status":
                    self._note(key, TFJobDifference.EXPORTED)
                case _:
                    self._note(key, TFJobDifference.UNKNOWN)
        conversion.check(job)
        return conversion.Converted(job, tuple(self._recorder.notices))

    def _spec(self, fields: conversion.Fields) -> conversion.Fields:
        spec = self._recorder.known(fields, (*_SPEC, *_MISPLACED), "spec", TFJobDifference.UNKNOWN)
        misplaced = {key: spec.pop(key) for key in _MISPLACED if key in spec}
        if misplaced:
            self._note("spec", TFJobDifference.MISPLACED, ", ".join(misplaced))
        spec["tfReplicaSpecs"] = roles = self._roles(spec.get("tfReplicaSpecs"))
        policy = {**misplaced, **conversion.fields(spec.get("runPolicy"), "spec.runPolicy")}
        policy = self._run_policy(policy, roles)
        if "managedBy" in policy:
            spec = {"managedBy": policy.pop("managedBy"), **spec}
        if "runPolicy" not in spec:
            spec = {"runPolicy": {}, **spec}
        spec["runPolicy"] = policy
        if not policy:
            del spec["runPolicy"]
        word = spec.get("successPolicy")
        if word is not None and word not in list(types.SuccessPolicy):
            del spec["successPolicy"]
            self._note("spec.successPolicy", TFJobDifference.SUCCESS_WORD, repr(word))
        return spec

    def _run_policy(self, fields: conversion.Fields, roles: conversion.Fields) -> conversion.Fields:
        field = "spec.runPolicy"
        policy = self._recorder.known(fields, _RUN_POLICY, field, TFJobDifference.UNKNOWN)
        if "schedulingPolicy" in policy:
            gang = f"{field}.schedulingPolicy"
            entries = conversion.fields(policy["schedulingPolicy"], gang)
            entries = {key: value for key, value in entries.items() if value not in ("", {})}
            policy["schedulingPolicy"] = self._recorder.known(
                entries, _SCHEDULING_POLICY, gang, TFJobDifference.UNKNOWN
            )
            self._note(gang, TFJobDifference.SCHEDULING_POLICY)
        if policy.get("managedBy") == _TRAINING_OPERATOR:
            del policy["managedBy"]
            self._note(f"{field}.managedBy", TFJobDifference.MANAGED_BY)
        if "activeDeadlineSeconds" in policy:
            self._note(f"{field}.activeDeadlineSeconds", TFJobDifference.DEADLINE)
        self._clean_up(policy, f"{field}.cleanPodPolicy")
        self._retries(policy, f"{field}.backoffLimit", roles)
        return policy

    def _clean_up(self, policy: conversion.Fields, field: str) -> None:
        word = policy.get("cleanPodPolicy")
        if word is not None and word not in list(types.CleanPodPolicy):
            policy["cleanPodPolicy"] = types.CleanPodPolicy.ALL.value
            self._note(field, TFJobDifference.CLEAN_WORD, repr(word))
        elif word is None and self._write_defaults:
            policy["cleanPodPolicy"] = self._clean_pod_policy
            self._note(field, TFJobDifference.CLEAN_POD_POLICY)
        elif word is None and self._clean_pod_policy != types.CleanPodPolicy.RUNNING.value:
            self._note(field, TFJobDifference.DEFAULT_CLEAN_POD_POLICY)

    def _retries(self, policy: conversion.Fields, field: str, roles: conversion.Fields) -> None:
        never = types.RestartPolicy.NEVER.value
        policies = [role.get("restartPolicy") for role in roles.values()]
        restarts = any(word not in (None, never) for word in policies)
        if "backoffLimit" in policy:
            self._note(field, TFJobDifference.COUNTED)
        elif restarts and self._write_defaults:
            policy["backoffLimit"] = UNLIMITED
            self._note(field, TFJobDifference.BACKOFF_LIMIT)
        elif restarts:
            self._note(field, TFJobDifference.DEFAULT_BACKOFF_LIMIT)
        if restarts and types.Role.PS not in roles and _count(roles) > 1:
            self._note(_ROLES_FIELD, TFJobDifference.TOGETHER)
        if never in policies:
            without = ", ".join(role for role in roles if roles[role].get("restartPolicy") == never)
            self._note(_ROLES_FIELD, TFJobDifference.DISRUPTION, without)

    def _roles(self, value: Any) -> conversion.Fields:
        by_role: conversion.Fields = {}
        for key, spec in conversion.fields(value, _ROLES_FIELD).items():
            field = f"{_ROLES_FIELD}.{key}"
            role = _ROLES.get(str(key).casefold())
            if role is None:
                known = ", ".join(types.Role)
                raise load.SpecError(f"{field}: no role of TFJob; the roles are {known}")
            if role.value in by_role:
                raise load.SpecError(f"{field}: given twice as {role}; remove one of them")
            if key != role.value:
                self._note(field, TFJobDifference.ROLE_KEYS)
            by_role[role.value] = conversion.fields(spec, field)
        roles = {}
        for key, spec in by_role.items():
            if spec.get("replicas") == 0:
                self._note(f"{_ROLES_FIELD}.{key}", TFJobDifference.NO_REPLICAS)
            else:
                roles[key] = self._role(key, spec, sets_tf_config=_count(by_role) != 1)
        self._note_roles(roles)
        return roles

    def _role(
        self, key: str, spec: conversion.Fields, *, sets_tf_config: bool
    ) -> conversion.Fields:
        field = f"{_ROLES_FIELD}.{key}"
        role = self._recorder.known(spec, _REPLICA, field, TFJobDifference.UNKNOWN)
        policy = role.get("restartPolicy")
        if not policy:
            role.pop("restartPolicy", None)
            if self._write_defaults:
                role["restartPolicy"] = types.RestartPolicy.NEVER.value
                self._note(field, TFJobDifference.RESTART_POLICY)
            else:
                self._note(field, TFJobDifference.DEFAULT_RESTART_POLICY)
        elif policy == types.RestartPolicy.ALWAYS.value:
            self._note(f"{field}.restartPolicy", TFJobDifference.ALWAYS)
        if "template" in role:
            role["template"], notices = template.convert(
                role["template"],
                f"{field}.template",
                job_name=self._name,
                sets_tf_config=sets_tf_config,
            )
            self._recorder.notices += notices
        return role

    def _note_roles(self, roles: conversion.Fields) -> None:
        if types.Role.EVALUATOR in roles:
            self._note(f"{_ROLES_FIELD}.Evaluator", TFJobDifference.EVALUATOR_FAILS)
            self._note(f"{_ROLES_FIELD}.Evaluator", TFJobDifference.EVALUATOR_GRACE)
            self._note(f"{_ROLES_FIELD}.Evaluator", TFJobDifference.EVALUATOR_ADDRESS)
        if types.Role.MASTER in roles:
            self._note(f"{_ROLES_FIELD}.Master", TFJobDifference.MASTER)
        elif types.Role.PS in roles and types.Role.CHIEF not in roles:
            self._note(f"{_ROLES_FIELD}.PS", TFJobDifference.SERVERS)
        if _count(roles) == 1:
            self._note(_ROLES_FIELD, TFJobDifference.ONE_REPLICA)


def _count(roles: conversion.Fields) -> int:
    """How many replicas there are, as far as they are numbers."""
    numbers = [1 if role.get("replicas") is None else role["replicas"] for role in roles.values()]
    return sum(number for number in numbers if isinstance(number, int))
