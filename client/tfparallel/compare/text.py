"""The report as text: for a terminal, for a page, for programs."""

import dataclasses
import json
from collections.abc import Iterator

from rich import table as rich_table
from rich import text as rich_text

from tfparallel.compare import report

NOTHING = "-"


def cell(found: report.Cell) -> str:
    """Write a figure: the mean over seeds, and ± its standard deviation where it differs."""
    if found.mean is None:
        return NOTHING
    written = number(found.mean)
    if found.deviation:
        written += f" ± {number(found.deviation)}"
    if len(found.values) < found.asked:
        written += f" ({len(found.values)} of {found.asked} seeds)"
    return written


def number(value: float) -> str:
    """Write a number for people: three significant digits, whole numbers whole."""
    if abs(value) >= 1000 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.3g}"


def name(row: report.Row) -> str:
    """Write what a row tells."""
    return f"{row.name}, {row.unit}" if row.unit else row.name


def table(made: report.Report) -> rich_table.Table:
    """The figures for a terminal."""
    found = rich_table.Table("", *made.variants, title=f"{made.job}: {made.setting}")
    for group in made.groups:
        found.add_row(rich_text.Text(group.name, "bold"))
        for row in group.rows:
            found.add_row(name(row), *map(cell, row.cells))
        found.add_section()
    return found


def page(made: report.Report, pictures: dict[str, str]) -> str:
    """The report in Markdown.

    Args:
        made: the report.
        pictures: what pictures show, by their files beside the page.
    """
    return "\n".join(
        [
            f"# Sync and async: {made.job}",
            "",
            f"{made.setting}. Each figure is the mean over the seeds ± the standard deviation.",
            "",
            *rows(made),
            "",
            *(line for sentence in made.verdicts for line in (sentence, "")),
            *(f"![{shown}]({file})" for file, shown in pictures.items()),
            "",
        ]
    )


def rows(made: report.Report) -> Iterator[str]:
    """The lines of the table in Markdown."""
    yield f"| | {' | '.join(made.variants)} |"
    yield f"|---|{'---|' * len(made.variants)}"
    for group in made.groups:
        yield f"| **{group.name}** |{' |' * len(made.variants)}"
        for row in group.rows:
            yield f"| {name(row)} | {' | '.join(map(cell, row.cells))} |"


def machine(made: report.Report) -> str:
    """The report as JSON."""
    return json.dumps(dataclasses.asdict(made), indent=1) + "\n"
