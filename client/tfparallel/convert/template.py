"""The pod templates of a TFJob: what of them means something else here."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tfparallel.convert import conversion
from tfparallel.convert.tfjob_differences import TFJobDifference
from tfparallel_operator.api import names, types
from tfparallel_operator.core.pods import restart_policies
from tfparallel_trainer.contract import environment

OLD_PREFIX = "training.kubeflow.org/"

LABELS = {
    f"{OLD_PREFIX}job-name": names.LABEL_JOB,
    f"{OLD_PREFIX}replica-type": names.LABEL_ROLE,
    f"{OLD_PREFIX}replica-index": names.LABEL_INDEX,
    "tf-job-name": names.LABEL_JOB,
    "tf-replica-type": names.LABEL_ROLE,
    "tf-replica-index": names.LABEL_INDEX,
}
"""What TFJob's labels are called here; the last three are those of its first releases."""

_POD_GROUP = "scheduling.k8s.io/group-name"
_DEFAULT_SCHEDULERS = (None, "", "default-scheduler")
_TENSORFLOW_1 = re.compile(
    r"(?:^|/)(?:tensorflow(?:-gpu)?:v?1\.\d|tf-(?:dist-mnist-test|mnist-with-summaries)(?:$|[:@]))"
)
"""Images of TensorFlow 1: its own, and those of Kubeflow's examples."""
_SELECTING = ("affinity", "topologySpreadConstraints")
_NAMING = ("hostname", "subdomain")


def convert(
    template: Any, field: str, *, job_name: str, sets_tf_config: bool
) -> tuple[Any, list[conversion.Notice]]:
    """Return a template that means here what it meant in a TFJob, and what is different.

    Args:
        template: the value of the field; what is not a pod template is left to be refused.
        field: its path, for the notices.
        job_name: the job's, by which scripts may address its pods; empty: not known.
        sets_tf_config: whether TFJob sets TF_CONFIG in this job.
    """
    if not isinstance(template, Mapping) or not isinstance(template.get("spec"), Mapping):
        return template, []
    recorder = conversion.Recorder()
    field_of_pod = f"{field}.spec"
    spec = {key: value for key, value in template["spec"].items() if key not in _NAMING}
    if len(spec) < len(template["spec"]):
        recorder.note(field_of_pod, TFJobDifference.HOSTNAME)
    if (scheduler := spec.get("schedulerName")) not in _DEFAULT_SCHEDULERS:
        recorder.note(f"{field_of_pod}.schedulerName", TFJobDifference.SCHEDULER, str(scheduler))
    for number, container in enumerate(_items(spec, "containers")):
        image = container.get("image") if isinstance(container, Mapping) else None
        if _TENSORFLOW_1.search(str(image)):
            field_of_image = f"{field_of_pod}.containers[{number}].image"
            recorder.note(field_of_image, TFJobDifference.IMAGE, str(image))
    if "restartPolicy" in spec:
        recorder.note(f"{field_of_pod}.restartPolicy", TFJobDifference.POD_RESTART_POLICY)
    for kind, number, key in restart_policies.find(spec):
        field_of_image = f"{field_of_pod}.{kind}[{number}].{key}"
        recorder.note(field_of_image, TFJobDifference.CONTAINER_RESTART_POLICY)
    if sets_tf_config and "containers" in spec:
        spec["containers"] = [_without_tf_config(entry) for entry in _items(spec, "containers")]
        if spec["containers"] != template["spec"]["containers"]:
            recorder.note(f"{field_of_pod}.containers", TFJobDifference.TEMPLATE_TF_CONFIG)
    renamed = {key: _renamed(value, key in _SELECTING) for key, value in spec.items()}
    if renamed != spec or mentions_old_labels(renamed):
        recorder.note(field_of_pod, TFJobDifference.LABELS)
    metadata = template.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    if isinstance(annotations, Mapping) and _POD_GROUP in annotations:
        recorder.note(f"{field}.metadata.annotations", TFJobDifference.POD_GROUP)
    if ports := _open_ports(spec):
        recorder.note(f"{field_of_pod}.containers", TFJobDifference.NETWORK, f"port {ports}")
    if address := pod_address(spec, job_name):
        recorder.note(field_of_pod, TFJobDifference.ADDRESSES, address)
    return {**template, "spec": renamed}, recorder.notices


def pod_address(value: Any, job_name: str) -> str:
    """Return the first name of a pod of a TFJob in a value; empty: it names none."""
    roles = "|".join(role.label for role in types.Role)
    pattern = re.compile(rf"(?<![\w.-]){re.escape(job_name)}-(?:{roles})-\d+\b")
    matches = (pattern.search(text) for text in texts(value)) if job_name else ()
    return next((match[0] for match in matches if match), "")


def _open_ports(spec: Mapping[str, Any]) -> str:
    """Return the ports that containers declare for others than their peers."""
    ports = [
        port.get("containerPort")
        for container in _items(spec, "containers")
        if isinstance(container, Mapping)
        for port in _items(container, "ports")
        if isinstance(port, Mapping) and port.get("name") != names.PORT_NAME
    ]
    return ", ".join(map(str, ports))


def mentions_old_labels(value: Any) -> bool:
    """Whether a label of TFJob's stands anywhere in a value."""
    return any(OLD_PREFIX in text or text in LABELS for text in texts(value))


def _items(spec: Mapping[str, Any], key: str) -> list[Any]:
    entries = spec.get(key)
    return list(entries) if isinstance(entries, list) else []


def _without_tf_config(container: Any) -> Any:
    """Return a container without the variable, when it is the one that trains."""
    if not isinstance(container, Mapping) or container.get("name") != names.CONTAINER:
        return container
    variables = _items(container, "env")
    kept = [
        variable
        for variable in variables
        if not (isinstance(variable, Mapping) and variable.get("name") == environment.TF_CONFIG)
    ]
    if len(kept) == len(variables):
        return container
    remaining = {key: value for key, value in container.items() if key != "env" or kept}
    return {**remaining, "env": kept} if kept else remaining


def _renamed(value: Any, selects: bool) -> Any:
    """Rename labels: in what selects pods by them, and in field paths that read them."""
    if isinstance(value, Mapping):
        return {
            LABELS.get(key, key) if selects else key: (
                _path(inner) if key == "fieldPath" else _renamed(inner, selects)
            )
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_renamed(inner, selects) for inner in value]
    return LABELS.get(value, value) if selects and isinstance(value, str) else value


def _path(value: Any) -> Any:
    """Rename the label that a field path such as metadata.labels['name'] reads."""
    for old, new in LABELS.items():
        if value == f"metadata.labels['{old}']":
            return f"metadata.labels['{new}']"
    return value


def texts(value: Any) -> Iterator[str]:
    """Every string in a value, keys among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from texts(key)
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)
