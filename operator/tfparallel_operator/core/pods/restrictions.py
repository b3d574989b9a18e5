"""Finds what a job uses of its namespace and its nodes, and whether restrictions allow it. Pure.

The check looks at the pod that the operator would create, so it cannot overlook a field of the job.
It covers the additions of `pod_defaults` too, because a job can mount their volumes, and run a
program in a container of their name.
"""

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tfparallel_operator.core import installation, replicas
from tfparallel_operator.core.layout import Layout
from tfparallel_operator.core.pods import pod_builder

VALUE = "jobs.restrictions"
"""The chart's value, as messages name it."""

_DEFAULTS = "jobs.podDefaults"
"""The chart's value of the defaults."""

MAX_SECRETS = 100
"""Maximum number of Secrets of a job, if their labels decide."""

_CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
_HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")
_CAPABILITIES = frozenset(
    {
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
        *("NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
        "IPC_LOCK",
    }
)
"""Those that the Pod Security level baseline allows, and the one that RDMA needs."""

_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
"""Prefix of the annotations that named a container's profile before Kubernetes 1.30."""

_UNCONFINED = "Unconfined"
_SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
"""Those that the Pod Security level baseline allows."""

_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_HOOKS = ("postStart", "preStop")
_REQUESTS = ("httpGet", "tcpSocket")
"""Requests that the kubelet sends from the node.

They go to the pod, unless `host` names another address.
"""

_SECRET_VOLUMES = {
    "azureFile": "secretName",
    "cephfs": "secretRef",
    "cinder": "secretRef",
    "csi": "nodePublishSecretRef",
    "flexVolume": "secretRef",
    "iscsi": "secretRef",
    "rbd": "secretRef",
    "scaleIO": "secretRef",
    "secret": "secretName",
    "storageos": "secretRef",
}
"""The field of each volume that names a Secret, as in VisitPodSecretNames of Kubernetes 1.37."""


class Kind(enum.StrEnum):
    """The kind of a use."""

    SERVICE_ACCOUNT = "service account"
    HOST = "host access"
    SECRET = "Secret"  # noqa: S105 (a kind)


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """A field of a job, and what it uses."""

    kind: Kind
    value: str
    path: str


_Field = tuple[str, Any]
"""A path and the value there."""


def find_uses(layout: Layout, settings: installation.InstallationSettings) -> tuple[Use, ...]:
    """Return all uses of the pods of a job. Each has the first field that names it."""
    listed: dict[tuple[Kind, str], Use] = {}
    for use in _visit_job(layout, settings):
        listed.setdefault((use.kind, use.value), use)
    return tuple(listed.values())


def find_problem(
    use: Use,
    restrictions: installation.Restrictions,
    secrets: Mapping[str, Mapping[str, str] | None],
) -> str:
    """Say why a use is not allowed, and who can change that; empty: it is.

    Args:
        use: of a job.
        restrictions: the installation's.
        secrets: labels of the Secrets that are named; None: there is no such Secret.
    """
    accounts, labels = restrictions.service_accounts, restrictions.secret_labels
    match use.kind:
        case Kind.SERVICE_ACCOUNT if accounts and use.value not in accounts:
            return (
                f"{use.path} is {use.value!r}, and jobs may have {', '.join(accounts)} alone."
                f" Name one of these, or have an administrator change {VALUE}.serviceAccounts"
            )
        case Kind.HOST if restrictions.host_access is installation.HostAccess.FORBIDDEN:
            return (
                f"{use.path} is {use.value}, and jobs may not reach into their nodes. Remove it,"
                f" or have an administrator change {VALUE}.hostAccess"
            )
        case Kind.SECRET if labels and not labels.items() <= (secrets.get(use.value) or {}).items():
            required = ", ".join(f"{name}={value}" for name, value in labels.items())
            return (
                f"{use.path} names the Secret {use.value!r}, and jobs may use those with the label"
                f" {required} alone. Create or label it, or have an administrator change"
                f" {VALUE}.secrets"
            )
    return ""


def find_problem_of_defaults(
    pod_defaults: Mapping[str, Any], restrictions: installation.Restrictions
) -> str:
    """Say which of the installation's defaults its restrictions forbid; empty: none.

    It does not check labels of Secrets, because each namespace has its own Secrets.
    """
    allowed = dataclasses.replace(restrictions, secret_labels={})
    problems = (find_problem(use, allowed, {}) for use in _visit_defaults(pod_defaults))
    return next(filter(None, problems), "")


def find_many_secrets(uses: Iterable[Use]) -> str:
    """Say that a job names too many Secrets, because reading their labels takes requests; empty: it
    does not.

    Otherwise a single job could keep the operator busy.
    """
    count = sum(use.kind is Kind.SECRET for use in uses)
    if count <= MAX_SECRETS:
        return ""
    return (
        f"the job names {count} Secrets, and may name {MAX_SECRETS} where {VALUE}.secrets is set."
        " Put the values of several into one"
    )


def visit_pod(spec: Mapping[str, Any], above: str) -> Iterator[Use]:
    """Yield the uses in a pod's spec, which is at a path of the job."""
    name = "serviceAccountName" if spec.get("serviceAccountName") else "serviceAccount"
    if account := _account(spec):
        yield Use(Kind.SERVICE_ACCOUNT, account, f"{above}.{name}")
    for field in _HOST_NAMESPACES:
        if spec.get(field):
            yield Use(Kind.HOST, field, f"{above}.{field}")
    yield from _visit_security(spec, above)
    for path, reference in _items(spec, "imagePullSecrets", above):
        yield from _secret(reference.get("name"), f"{path}.name")
    for field in _CONTAINERS:
        for path, container in _items(spec, field, above):
            yield from _visit_container(container, path)
    for path, volume in _items(spec, "volumes", above):
        yield from _visit_volume(volume, path)


def visit_annotations(annotations: Mapping[str, Any], above: str) -> Iterator[Use]:
    """Yield the uses in a pod's annotations, which are at a path of the job."""
    for name, profile in annotations.items():
        if name.startswith(_APPARMOR) and profile == _UNCONFINED.lower():
            yield Use(Kind.HOST, "an unconfined AppArmor profile", f"{above}[{name}]")


def _visit_job(layout: Layout, settings: installation.InstallationSettings) -> Iterator[Use]:
    """Yield the uses in fields of the job, and then those of its pods that no field explains."""
    job = layout.job
    if job.spec.host_network:
        yield Use(Kind.HOST, "hostNetwork", "spec.hostNetwork")
    roles = job.spec.tf_replica_specs
    for role, spec in roles.items():
        template, above = _mapping(spec.template), f"spec.tfReplicaSpecs.{role}.template"
        yield from visit_pod(_mapping(template.get("spec")), f"{above}.spec")
        annotations = _mapping(_mapping(template.get("metadata")).get("annotations"))
        yield from visit_annotations(annotations, f"{above}.metadata.annotations")
    if job.spec.trainer is not None:
        fields = job.spec.trainer.model_dump(mode="json", by_alias=True, exclude_none=True)
        yield from _visit_trainer(fields, "spec.trainer")
    yield from _visit_defaults(settings.pod_defaults)
    of_job = dataclasses.replace(settings, trainer_pull_secrets=())
    builder = pod_builder.PodBuilder(layout, of_job, job.status)
    for role in roles:
        pod_spec = builder.build(replicas.Replica(role, 0))["spec"]
        path = f"spec.tfReplicaSpecs.{role}.template.spec"
        yield from visit_pod(pod_spec, path)
        if not _account(pod_spec):
            yield Use(Kind.SERVICE_ACCOUNT, "default", f"{path}.serviceAccountName")


def _visit_defaults(pod_defaults: Mapping[str, Any]) -> Iterator[Use]:
    yield from visit_pod(_mapping(pod_defaults.get("spec")), f"{_DEFAULTS}.spec")
    annotations = _mapping(_mapping(pod_defaults.get("metadata")).get("annotations"))
    yield from visit_annotations(annotations, f"{_DEFAULTS}.metadata.annotations")


def _visit_trainer(fields: Mapping[str, Any], above: str) -> Iterator[Use]:
    yield from _visit_variables(fields, above)
    for path, volume in _items(fields, "volumes", above):
        yield from _secret(volume.get("secret"), f"{path}.secret")
    for path, name in _all_items(fields, "imagePullSecrets", above):
        yield from _secret(name, path)


def _visit_container(container: Mapping[str, Any], above: str) -> Iterator[Use]:
    yield from _visit_variables(container, above)
    yield from _visit_security(container, above)
    for path, port in _items(container, "ports", above):
        if port.get("hostPort"):
            yield Use(Kind.HOST, f"host port {port['hostPort']}", f"{path}.hostPort")
    lifecycle = _mapping(container.get("lifecycle"))
    handlers = [(f"{above}.{name}", container.get(name)) for name in _PROBES]
    handlers += [(f"{above}.lifecycle.{name}", lifecycle.get(name)) for name in _HOOKS]
    for path, handler in handlers:
        for kind in _REQUESTS:
            if host := _mapping(_mapping(handler).get(kind)).get("host"):
                yield Use(Kind.HOST, f"requests to {host}", f"{path}.{kind}.host")


def _visit_security(owner: Mapping[str, Any], above: str) -> Iterator[Use]:
    security, path = _mapping(owner.get("securityContext")), f"{above}.securityContext"
    if security.get("privileged"):
        yield Use(Kind.HOST, "privileged", f"{path}.privileged")
    if security.get("procMount") == "Unmasked":
        yield Use(Kind.HOST, "Unmasked", f"{path}.procMount")
    capabilities = _mapping(security.get("capabilities"))
    for item_path, name in _all_items(capabilities, "add", f"{path}.capabilities"):
        if str(name).removeprefix("CAP_") not in _CAPABILITIES:
            yield Use(Kind.HOST, str(name), item_path)
    for field, shown in (("seccompProfile", "seccomp"), ("appArmorProfile", "AppArmor")):
        if _mapping(security.get(field)).get("type") == _UNCONFINED:
            yield Use(Kind.HOST, f"an unconfined {shown} profile", f"{path}.{field}.type")
    selinux = _mapping(security.get("seLinuxOptions"))
    if selinux.get("type", "") not in _SELINUX_TYPES:
        yield Use(Kind.HOST, f"the SELinux type {selinux['type']}", f"{path}.seLinuxOptions.type")
    for field in ("user", "role"):
        if selinux.get(field):
            used = f"the SELinux {field} {selinux[field]}"
            yield Use(Kind.HOST, used, f"{path}.seLinuxOptions.{field}")
    if _mapping(security.get("windowsOptions")).get("hostProcess"):
        yield Use(Kind.HOST, "hostProcess", f"{path}.windowsOptions.hostProcess")


def _visit_variables(container: Mapping[str, Any], above: str) -> Iterator[Use]:
    for path, source in _items(container, "envFrom", above):
        reference = _mapping(source.get("secretRef"))
        yield from _secret(reference.get("name"), f"{path}.secretRef.name")
    for path, variable in _items(container, "env", above):
        reference = _mapping(_mapping(variable.get("valueFrom")).get("secretKeyRef"))
        yield from _secret(reference.get("name"), f"{path}.valueFrom.secretKeyRef.name")


def _visit_volume(volume: Mapping[str, Any], above: str) -> Iterator[Use]:
    for kind, field in _SECRET_VOLUMES.items():
        reference, path = _mapping(volume.get(kind)).get(field), f"{above}.{kind}.{field}"
        is_reference = isinstance(reference, Mapping)
        name = _mapping(reference).get("name") if is_reference else reference
        yield from _secret(name, f"{path}.name" if is_reference else path)
    projected = _mapping(volume.get("projected"))
    for path, source in _items(projected, "sources", f"{above}.projected"):
        yield from _secret(_mapping(source.get("secret")).get("name"), f"{path}.secret.name")
    if "hostPath" in volume:
        shown = _mapping(volume["hostPath"]).get("path")
        yield Use(Kind.HOST, f"the host path {shown}", f"{above}.hostPath")


def _secret(name: Any, path: str) -> Iterator[Use]:
    if name:
        yield Use(Kind.SECRET, str(name), path)


def _account(spec: Mapping[str, Any]) -> str:
    """Return the service account of a pod.

    The deprecated name of the field counts if the new one is absent.
    """
    return str(spec.get("serviceAccountName") or spec.get("serviceAccount") or "")


def _items(owner: Mapping[str, Any], field: str, above: str) -> Iterator[tuple[str, Any]]:
    for path, item in _all_items(owner, field, above):
        if isinstance(item, Mapping):
            yield path, item


def _all_items(owner: Mapping[str, Any], field: str, above: str) -> Iterator[_Field]:
    items = owner.get(field)
    if isinstance(items, Sequence) and not isinstance(items, str):
        for number, item in enumerate(items):
            yield f"{above}.{field}[{number}]", item


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
