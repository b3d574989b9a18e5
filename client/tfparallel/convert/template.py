"""The pod templates of a TFJob: what of them means something else here."""

from collections.abc import Iterator, Mapping
from typing import Any

from tfparallel.convert.differences import Difference
from tfparallel_operator.api import names
from tfparallel_trainer.contract import environment

Found = tuple[str, Difference]
"""A field and what is different there."""

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
_SELECTING = ("affinity", "topologySpreadConstraints")
_NAMING = ("hostname", "subdomain")


def convert(template: Any, field: str, *, sets_tf_config: bool) -> tuple[Any, list[Found]]:
    """Return a template that means here what it meant in a TFJob, and what is different.

    Args:
        template: as it was given; what is none of a template's parts is left to be refused.
        field: its place, for the findings.
        sets_tf_config: whether TFJob sets TF_CONFIG in this job.
    """
    if not isinstance(template, Mapping) or not isinstance(template.get("spec"), Mapping):
        return template, []
    found: list[Found] = []
    spec = {key: value for key, value in template["spec"].items() if key not in _NAMING}
    if len(spec) < len(template["spec"]):
        found.append((f"{field}.spec", Difference.HOSTNAME))
    if sets_tf_config:
        spec["containers"] = [_without_tf_config(one) for one in _items(spec, "containers")]
        if spec["containers"] != template["spec"].get("containers"):
            found.append((f"{field}.spec.containers", Difference.GIVEN_TF_CONFIG))
        if "containers" not in template["spec"]:
            del spec["containers"]
    renamed = {key: _renamed(value, key in _SELECTING) for key, value in spec.items()}
    if renamed != spec or mentions_old_labels(renamed):
        found.append((f"{field}.spec", Difference.LABELS))
    metadata = template.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    if isinstance(annotations, Mapping) and _POD_GROUP in annotations:
        found.append((f"{field}.metadata.annotations", Difference.POD_GROUP))
    return {**template, "spec": renamed}, found


def mentions_old_labels(value: Any) -> bool:
    """Whether a label of TFJob's stands anywhere in a value."""
    return any(OLD_PREFIX in text or text in LABELS for text in _texts(value))


def _items(spec: Mapping[str, Any], key: str) -> list[Any]:
    given = spec.get(key)
    return list(given) if isinstance(given, list) else []


def _without_tf_config(container: Any) -> Any:
    """Return a container without the variable, when it is the one that trains."""
    if not isinstance(container, Mapping) or container.get("name") != names.CONTAINER:
        return container
    given = _items(container, "env")
    kept = [
        one
        for one in given
        if not (isinstance(one, Mapping) and one.get("name") == environment.TF_CONFIG)
    ]
    if len(kept) == len(given):
        return container
    rest = {key: value for key, value in container.items() if key != "env" or kept}
    return {**rest, "env": kept} if kept else rest


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


def _texts(value: Any) -> Iterator[str]:
    """Every string in a value, keys among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
