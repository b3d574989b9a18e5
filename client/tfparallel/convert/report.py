"""The differences of converted jobs, as tables by severity that fit a terminal of 80 columns."""

import dataclasses
import textwrap
from collections.abc import Iterator, Sequence

from tfparallel.convert import conversion
from tfparallel_trainer.contract import documentation

WIDTH = 80
_INDENT = "  "
_CELL = 25
"""Three of them stand side by side."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job that is converted, and what the documentation says of it."""

    name: str
    differences: type[conversion.Difference]
    section: documentation.Section
    """Where the differences stand that hold for every job."""


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What is different about one object of a file."""

    place: str
    """File, kind and name."""
    kind: Kind
    notices: tuple[conversion.Notice, ...]


def lines(reports: Sequence[Report]) -> Iterator[str]:
    """Yield the tables of all objects, those with the same differences at once, and what holds for
    every job."""
    places: dict[tuple[Kind, tuple[conversion.Notice, ...]], list[str]] = {}
    for report in reports:
        places.setdefault((report.kind, report.notices), []).append(report.place)
    for (kind, notices), shown in places.items():
        if notices:
            yield from (*shown, "")
        for severity in conversion.Severity:
            chosen = [notice for notice in notices if notice.severity is severity]
            if chosen:
                yield f"{severity.upper()}: {conversion.MEANINGS[severity]}"
                yield from _row(kind.name, "TFParallelJob", "tfparallel convert")
                yield from (*_table(chosen), "")
    for kind in dict.fromkeys(report.kind for report in reports):
        yield from _general(kind, [report for report in reports if report.kind == kind])


def _table(notices: Sequence[conversion.Notice]) -> Iterator[str]:
    """Yield each difference once: where it is, and its cells below."""
    places: dict[conversion.Difference, list[str]] = {}
    for notice in notices:
        received = f" ({notice.received})" if notice.received else ""
        places.setdefault(notice.difference, []).append(f"{notice.field}{received}")
    for difference, fields in places.items():
        row = difference.value
        yield from _wrapped(f"- {_plain(row.subject)}: {', '.join(dict.fromkeys(fields))}")
        yield from _row(row.theirs, row.ours, row.action)


def _general(kind: Kind, reports: Sequence[Report]) -> Iterator[str]:
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


def _row(*cells: str) -> list[str]:
    """Return the lines of a row of cells that are wrapped side by side."""
    columns = [_wrapped(_plain(cell), _CELL) for cell in cells]
    height = max(map(len, columns))
    padded = [column + [""] * (height - len(column)) for column in columns]
    return [
        _INDENT + " ".join(f"{cell:{_CELL}}" for cell in line).rstrip()
        for line in zip(*padded, strict=True)
    ]


def _plain(text: str) -> str:
    return text.replace("`", "")


def _wrapped(text: str, width: int = WIDTH) -> list[str]:
    indent = _INDENT if width == WIDTH else ""
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)
