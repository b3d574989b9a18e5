"""The figures of docs/benchmarks/compare.md that no run measures: counts of code and of jobs."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tfparallel.compare import command, complexity, plan, report
from tfparallel_operator.local import source

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs/benchmarks/compare.md"

_EXAMPLES = ("digits", "mnist")
_JOBS = plan.Design(workers=2, servers=1, seeds=1, slow_worker=None, equal=plan.Equal.UPDATE)


def page() -> str:
    """Return the page with the counts of today."""
    text = FILE.read_text(encoding="utf-8")
    for example in _EXAMPLES:
        before, mark, rest = text.partition(f"<!-- {example} -->\n")
        part, end, after = rest.partition("<!-- end -->")
        for name, counts in _counts(example):
            part = re.sub(
                rf"^\| {name} \|.*$",
                f"| {name} | " + " | ".join([str(counts[mode]) for mode in plan.Mode] * 2) + " |",
                part,
                flags=re.MULTILINE,
            )
        text = before + mark + part + end + after
    return text


def _counts(example: str) -> Iterator[tuple[str, Mapping[plan.Mode, int]]]:
    """Yield the rows: a name, and the count of each mode."""
    job_source = source.read(ROOT / "examples" / example / "job.yaml")
    trainer = job_source.job.spec.trainer
    if trainer is None:
        raise ValueError(f"{example} has no trainer")
    lines = complexity.lines(source.module_text(job_source, trainer))
    yield report.USER_LINES, dict.fromkeys(plan.Mode, lines)
    jobs = {trial.variant.mode: trial.source.job for trial in plan.trials(job_source, _JOBS)}
    yield report.JOB_FIELDS, command.count_fields(jobs)
    yield report.TRAINER_LINES, {mode: complexity.trainer_lines(mode) for mode in plan.Mode}
