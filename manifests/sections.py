"""Generated sections of pages that people write: reasons, limits, ends of pods, effects of edits,
and the figures of docs/benchmarks/compare.md that no run measures."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from manifests import ends, limits
from testing import pages, paths
from testing.operator import edit_effects
from tfparallel.compare import comparison_report, complexity, job_comparison, trial_jobs
from tfparallel.job_source import source
from tfparallel_operator.api import names, reasons
from tfparallel_operator.core import remedies
from tfparallel_trainer.contract import exits

ENDS_FILE = paths.PAGES / "reference/ends.md"
REASONS_FILE = paths.PAGES / "reference/reasons.md"
LIMITS_FILE = paths.PAGES / "reference/limits.md"
LIFE_FILE = paths.PAGES / "explanation/life.md"
COMPARE_FILE = paths.PAGES / "benchmarks/compare.md"
COMPARED = ("digits", "mnist")
_JOBS = trial_jobs.Design(
    workers=2, servers=1, seeds=1, slow_worker=None, equal=trial_jobs.Equal.UPDATE
)


def files() -> dict[Path, str]:
    """Return the pages with the sections of today."""
    reason_tables = {
        "conditions": _conditions(),
        "reasons": _reasons(),
        "exit codes": _exit_codes(),
    }
    comparison = COMPARE_FILE.read_text(encoding="utf-8")
    return {
        REASONS_FILE: _filled(REASONS_FILE, reason_tables),
        LIMITS_FILE: _filled(
            LIMITS_FILE,
            {
                "jobs": limits.jobs(),
                "reports": limits.reports(),
                "connections": limits.connections_table(),
                "messages": limits.messages(),
            },
        ),
        ENDS_FILE: _filled(ENDS_FILE, {"ends": ends.table()}),
        LIFE_FILE: _filled(LIFE_FILE, {"edits": edit_effects.table()}),
        COMPARE_FILE: _filled(
            COMPARE_FILE,
            {name: _counted(pages.section(comparison, name), name) for name in COMPARED},
        ),
    }


def _filled(file: Path, sections: Mapping[str, str]) -> str:
    """Return a page with these sections."""
    text = file.read_text(encoding="utf-8")
    for name, content in sections.items():
        text = pages.with_section(text, name, content)
    return text


def _conditions() -> str:
    rows = [(_name(condition), reasons.CONDITIONS[condition]) for condition in names.ConditionType]
    return pages.table(("condition", "true when"), rows)


def _reasons() -> str:
    explained = [(reason, reasons.REASONS[reason]) for reason in names.Reason]
    rows = [
        (_name(reason), explanation.event, explanation.meaning, explanation.remedy)
        for reason, explanation in explained
    ]
    return pages.table(("reason", "Event", "meaning", "what to do"), rows)


def _exit_codes() -> str:
    rows = []
    for code in sorted({*exits.Exit, *remedies.BY_EXIT_CODE}):
        ours = exits.Exit(code) if code in {*exits.Exit} else None
        again = "by `restartPolicy`" if ours is None else "yes" if ours.retryable else "no"
        if code in exits.ASKED_TO_END:
            again = "yes"
        name = f"`{ours.name}`" if ours else ""
        remedy = remedies.BY_EXIT_CODE.get(code, "")
        number = f'<a id="exit-{code}"></a>{int(code)}'
        rows.append((number, name, exits.describe(code), again, remedy))
    return pages.table(("exit code", "name", "meaning", "run again", "what to do"), rows)


def _name(name: str) -> str:
    """Return a name that links lead to."""
    return f'<a id="{name.lower()}"></a>`{name}`'


def _counted(section: str, example: str) -> str:
    """Return the section of an example with the counts of code and of jobs."""
    for name, counts in _counts(example):
        cells = " | ".join([str(counts[mode]) for mode in trial_jobs.Mode] * 2)
        section = re.sub(rf"(?m)^\| {name} \|.*$", f"| {name} | {cells} |", section)
    return section


def _counts(example: str) -> Iterator[tuple[str, Mapping[trial_jobs.Mode, int]]]:
    """Yield the rows: a name, and the count of each mode."""
    job_source = source.read(paths.EXAMPLES / example / "job.yaml")
    trainer = job_source.job.spec.trainer
    if trainer is None:
        raise ValueError(f"{example} has no trainer")
    lines = complexity.lines(source.module_text(job_source, trainer))
    yield comparison_report.USER_LINES, dict.fromkeys(trial_jobs.Mode, lines)
    jobs = {trial.variant.mode: trial.source.job for trial in trial_jobs.trials(job_source, _JOBS)}
    yield comparison_report.JOB_FIELDS, job_comparison.count_fields(jobs)
    yield (
        comparison_report.TRAINER_LINES,
        {mode: complexity.trainer_lines(mode) for mode in trial_jobs.Mode},
    )
