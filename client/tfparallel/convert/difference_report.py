"""The differences of converted jobs by severity, in sentences that fit a terminal of 80 columns."""

import dataclasses
import textwrap
from collections.abc import Iterator, Sequence

from tfparallel.convert import conversion
from tfparallel_trainer.contract import documentation

WIDTH = 80
_INDENT = "  "
_NEXT = (
    "Next step: spec.trainer trains a model.py without an image or a command of your own. In a"
    " script, tfparallel_trainer.fit takes the place of Keras' fit."
)


@dataclasses.dataclass(frozen=True, slots=True)
class JobKind:
    """A kind of job that is converted, and what the documentation says of it."""

    name: str
    differences: type[conversion.Difference]
    section: documentation.Section
    """Where the differences stand that hold for every job."""


@dataclasses.dataclass(frozen=True, slots=True)
class ObjectReport:
    """What is different about one object of a file."""

    place: str
    """File, kind and name."""
    kind: JobKind
    notices: tuple[conversion.Notice, ...]


def lines(reports: Sequence[ObjectReport]) -> Iterator[str]:
    """Yield the differences of all objects, those with the same ones at once, what holds for every
    job, and what to do next."""
    places: dict[tuple[JobKind, tuple[conversion.Notice, ...]], list[str]] = {}
    for report in reports:
        places.setdefault((report.kind, report.notices), []).append(report.place)
    for (kind, notices), shown in places.items():
        if notices:
            yield from (*shown, "")
        for severity in conversion.Severity:
            chosen = [notice for notice in notices if notice.severity is severity]
            if chosen:
                yield f"{severity.upper()}: {conversion.MEANINGS[severity]}"
                yield from (*_describe(chosen, kind), "")
    for kind in dict.fromkeys(report.kind for report in reports):
        yield from _general(kind, [report for report in reports if report.kind == kind])
    if reports:
        section = documentation.reference(documentation.Section.KERAS_FIT)
        yield from _wrapped(f"{_NEXT} See {section}.")


def _describe(notices: Sequence[conversion.Notice], kind: JobKind) -> Iterator[str]:
    """Yield each difference once: where it is, and what it is below."""
    places: dict[conversion.Difference, list[str]] = {}
    for notice in notices:
        received = f" ({notice.received})" if notice.received else ""
        places.setdefault(notice.difference, []).append(f"{notice.field}{received}")
    for difference, fields in places.items():
        row = difference.value
        yield from _wrapped(f"- {_plain(row.subject)}: {', '.join(dict.fromkeys(fields))}")
        sentences = (
            f"{kind.name}: {row.theirs}.",
            f"TFParallelJob: {row.ours}.",
            f"tfparallel convert {row.action}.",
        )
        yield from _wrapped(_plain(_INDENT + " ".join(sentences)))


def _general(kind: JobKind, reports: Sequence[ObjectReport]) -> Iterator[str]:
    """Yield in one line what holds for every job and is in no table."""
    shown = {notice.difference for report in reports for notice in report.notices}
    subjects = [
        _plain(difference.value.subject)
        for difference in kind.differences
        if difference.value.is_general and difference not in shown
    ]
    if subjects:
        section = documentation.reference(kind.section)
        every = f"Every {kind.name} also differs by: {'; '.join(subjects)}"
        yield from _wrapped(f"{every}. See {section}.")


def _plain(text: str) -> str:
    return text.replace("`", "")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=_INDENT, break_on_hyphens=False)
