"""What every conversion needs: its differences, how it notes them, and the check of its outcome."""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

from tfparallel_operator.api import load

Fields = dict[str, Any]

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_METADATA = ("name", "generateName", "namespace", "labels", "annotations")


class Severity(enum.StrEnum):
    """What a difference may do to a job."""

    BREAKING = "breaking"
    BEHAVIOR = "behavior"
    COSMETIC = "cosmetic"


MEANINGS = {
    Severity.BREAKING: "the job can fail or give another result until you act",
    Severity.BEHAVIOR: "the job runs differently; you need not act",
    Severity.COSMETIC: "only the manifest differs; the job runs the same",
}


@dataclasses.dataclass(frozen=True, slots=True)
class DifferenceRow:
    """One difference, as the cells of a table."""

    severity: Severity
    subject: str
    theirs: str
    ours: str
    action: str
    """What convert does about it, and what the user has to do."""
    is_general: bool = False
    """Whether it holds for every job: then it is noted only where a job depends on it."""


class Difference(enum.Enum):
    """The differences between one kind of job and TFParallelJob, in the order of its page."""

    _value_: DifferenceRow


@dataclasses.dataclass(frozen=True, slots=True)
class Notice:
    """A difference that concerns a job."""

    field: str
    difference: Difference
    received: str = ""
    """Which of several fields, or which value, where the field does not say it."""

    @property
    def severity(self) -> Severity:
        """What the difference may do to the job."""
        return self.difference.value.severity


@dataclasses.dataclass(frozen=True, slots=True)
class Converted:
    """The TFParallelJob, and what is different."""

    document: Fields
    notices: tuple[Notice, ...]


class Recorder:
    """Gathers the notices of one conversion."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []

    def note(self, field: str, difference: Difference, received: str = "") -> None:
        """Add a difference."""
        self.notices.append(Notice(field, difference, received))

    def known(
        self,
        mapping: Mapping[str, Any],
        known_fields: Sequence[str],
        field: str,
        difference: Difference,
    ) -> Fields:
        """Return the fields that are known and not null, and note the others."""
        others = [str(key) for key in mapping if key not in known_fields]
        if others:
            self.note(field, difference, ", ".join(others))
        return {
            key: value
            for key, value in mapping.items()
            if key in known_fields and value is not None
        }

    def metadata(self, value: Any, difference: Difference) -> Fields:
        """Return metadata as a person writes it, without what the cluster wrote."""
        metadata = self.known(fields(value, "metadata"), _METADATA, "metadata", difference)
        for field in ("labels", "annotations"):
            entries = fields(metadata.pop(field, None), f"metadata.{field}")
            entries.pop(_LAST_APPLIED, None)
            if entries:
                metadata[field] = entries
        return metadata


def fields(value: Any, field: str) -> Fields:
    """Return a mapping as it is, and nothing as an empty one.

    Raises:
        load.SpecError: the value is not a mapping.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise load.SpecError(f"{field}: received {value!r:.60}; write fields")
    return dict(value)


def items(value: Any, field: str) -> list[Fields]:
    """Return a list of mappings as it is, and nothing as an empty one.

    Raises:
        load.SpecError: the value is not a list of mappings.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise load.SpecError(f"{field}: received {value!r:.60}; write a list")
    return [fields(entry, f"{field}[{index}]") for index, entry in enumerate(value)]


def check(job: Fields) -> None:
    """See that the operator would take a job; one that the API server names gets a name here.

    Raises:
        load.SpecError: with a sentence for each field that is wrong.
    """
    metadata = job.get("metadata", {})
    if "name" not in metadata and metadata.get("generateName"):
        metadata = {**metadata, "name": f"{metadata['generateName']}00000"}
    load.parse_job({**job, "metadata": metadata})


def table(differences: Sequence[Difference], kind: str) -> str:
    """Return differences as a Markdown table."""
    lines = [
        f"| severity | | {kind} | TFParallelJob | `tfparallel convert` |",
        "|---|---|---|---|---|",
    ]
    for difference in differences:
        row = difference.value
        cells = (row.severity, row.subject, row.theirs, row.ours, row.action)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
