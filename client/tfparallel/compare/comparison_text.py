"""The report as text: for a terminal, for a page, for programs."""

import dataclasses
import json
from collections.abc import Iterator, Mapping

from rich import table as rich_table
from rich import text as rich_text

from tfparallel.compare import comparison_report

NOTHING = "-"


def cell(figure: comparison_report.Cell) -> str:
    """Write a figure: the mean over seeds, and ± its standard deviation where it differs."""
    if figure.mean is None:
        return NOTHING
    written = number(figure.mean)
    if figure.deviation:
        written += f" ± {number(figure.deviation)}"
    if len(figure.values) < figure.asked:
        written += f" ({len(figure.values)} of {figure.asked} seeds)"
    return written


def number(value: float) -> str:
    """Write a number for people: three significant digits, whole numbers whole."""
    if abs(value) >= 1000 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.3g}"


def name(row: comparison_report.FigureRow) -> str:
    """Write what a row tells."""
    return f"{row.name}, {row.unit}" if row.unit else row.name


def table(figures: comparison_report.ComparisonReport) -> rich_table.Table:
    """The figures for a terminal."""
    grid = rich_table.Table("", *figures.variants, title=f"{figures.job}: {figures.setting}")
    for group in figures.groups:
        grid.add_row(rich_text.Text(group.name, "bold"))
        for row in group.rows:
            grid.add_row(name(row), *map(cell, row.cells))
        grid.add_section()
    return grid


def page(figures: comparison_report.ComparisonReport, pictures: Mapping[str, str]) -> str:
    """The report in Markdown.

    Args:
        pictures: what pictures show, by their files beside the page.
    """
    return "\n".join(
        [
            f"# Sync and async: {figures.job}",
            "",
            f"{figures.setting}. Each figure is the mean over the seeds ± the standard deviation.",
            "",
            *rows(figures),
            "",
            *(line for sentence in figures.verdicts for line in (sentence, "")),
            *(f"![{shown}]({file})" for file, shown in pictures.items()),
            "",
        ]
    )


def rows(figures: comparison_report.ComparisonReport) -> Iterator[str]:
    """The lines of the table in Markdown."""
    yield f"| | {' | '.join(figures.variants)} |"
    yield f"|---|{'---|' * len(figures.variants)}"
    for group in figures.groups:
        yield f"| **{group.name}** |{' |' * len(figures.variants)}"
        for row in group.rows:
            yield f"| {name(row)} | {' | '.join(map(cell, row.cells))} |"


def machine(figures: comparison_report.ComparisonReport) -> str:
    """The report as JSON."""
    return json.dumps(dataclasses.asdict(figures), indent=1) + "\n"
