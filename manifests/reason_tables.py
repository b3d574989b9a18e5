"""The tables of docs/reference/reasons.md: conditions, reasons and exit codes."""

from collections.abc import Iterator
from pathlib import Path

from tfparallel_operator.api import names, reasons
from tfparallel_operator.core import remedies
from tfparallel_trainer.contract import exits

FILE = Path(__file__).resolve().parents[1] / "docs/reference/reasons.md"


def page() -> str:
    """Return the page with the tables of today."""
    text = FILE.read_text(encoding="utf-8")
    tables = {"conditions": _conditions(), "reasons": _reasons(), "exit codes": _exit_codes()}
    for name, rows in tables.items():
        before, mark, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        text = before + mark + "".join(f"| {row} |\n" for row in rows) + end + after
    return text


def _conditions() -> Iterator[str]:
    yield from ("condition | true when", "--- | ---")
    for condition in names.Condition:
        yield f"{_name(condition)} | {reasons.CONDITIONS[condition]}"


def _reasons() -> Iterator[str]:
    yield from ("reason | Event | meaning | what to do", " | ".join(["---"] * 4))
    for reason in names.Reason:
        explanation = reasons.REASONS[reason]
        cells = (explanation.event, explanation.meaning, explanation.remedy)
        yield " | ".join((_name(reason), *cells))


def _exit_codes() -> Iterator[str]:
    yield from ("exit code | name | meaning | run again | what to do", " | ".join(["---"] * 5))
    for code in sorted({*exits.Exit, *remedies.BY_EXIT_CODE}):
        ours = exits.Exit(code) if code in {*exits.Exit} else None
        again = "by `restartPolicy`" if ours is None else "yes" if ours.retryable else "no"
        cells = (f"`{ours.name}`" if ours else "", exits.describe(code), again)
        remedy = remedies.BY_EXIT_CODE.get(code, "")
        yield " | ".join((f'<a id="exit-{code}"></a>{int(code)}', *cells, remedy))


def _name(name: str) -> str:
    """Return a name that links lead to."""
    return f'<a id="{name.lower()}"></a>`{name}`'
