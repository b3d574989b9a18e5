"""`python -m benchmarks.pages.report_picture`: trains a job that loses a worker, and keeps it.

What is kept is what `tfparallel report` reads. `redraw` draws it for README.
"""

import asyncio
import html
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

from testing import paths, waiting
from tfparallel.backends.local import folders
from tfparallel.compare import network_usage
from tfparallel.drawing import palette, svg
from tfparallel.report import content, gather, report_pictures, timeline
from tfparallel.terminal import activities
from tfparallel_trainer.contract import environment, outputs

JOB = "examples/digits/job.yaml"
EPOCHS = 30
"""Enough to train on after the loss."""
STEPS_BEFORE_THE_LOSS = 300

KEPT = pathlib.Path(__file__).parent / "measured/report-digits"
IMAGE = paths.PAGES / "images/report-digits.svg"
TITLE = "Report of a job that lost a worker"

_GAP = 10.0
_HEAD = 72.0
_WIDTH = 2 * 72 * svg.NARROW + 3 * _GAP
_ROOT = re.compile(r'<svg\b[^<>]*?\bheight="([\d.]+)pt"[^<>]*>')
_POINTS = re.compile(r'\b(width|height)="([\d.]+)pt"')
_TEXT = 'font-family="DejaVu Sans, Verdana, sans-serif"'


def record(root: pathlib.Path) -> None:
    """Train the job in a folder, and kill its worker once."""
    program = (sys.executable, "-m", "tfparallel", "run", JOB, f"--output={root}")
    command = (*program, f"--set=spec.trainer.epochs={EPOCHS}")
    with subprocess.Popen(command, cwd=paths.ROOT) as run:
        waiting.until(
            lambda: _last_step(root),
            "steps before the loss",
            600,
            when=lambda step: step >= STEPS_BEFORE_THE_LOSS,
            in_vain=lambda: "" if run.poll() is None else f"It ended with {run.poll()}",
        )
        os.kill(_find_worker(run.pid), signal.SIGKILL)
    if run.returncode:
        raise RuntimeError(f"the job ended with {run.returncode}")


def keep(root: pathlib.Path, target: pathlib.Path) -> None:
    """Copy what a report reads of a run."""
    layout = folders.Folders(root)
    [log] = root.rglob(outputs.TRAIN_LOG)
    summary = log.parents[1] / outputs.SUMMARY
    files = (layout.status, layout.manifest, layout.events, layout.pod_changes, log, summary)
    shutil.rmtree(target, ignore_errors=True)
    for file in files:
        copy = target / file.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)


def picture(root: pathlib.Path = KEPT) -> svg.Picture:
    """Draw the head of the report, its curves, and where the time went."""
    run = asyncio.run(gather.gather_folder(root))
    figures = content.make(run)
    places, below = [], _HEAD
    curves = [report_pictures.metric(metric).narrow for metric in figures.metrics[:2]]
    for column, curve in enumerate(curves):
        places.append((curve, _GAP + column * (72 * svg.NARROW + _GAP), below))
    below += max(_height(curve) for curve in curves)
    times = timeline.picture(figures).wide
    if times is None:
        raise RuntimeError("the report has no timeline for wide pages")
    places.append((times, _GAP, below))
    description = " ".join(f"{part.title}: {part.description}." for part, _, _ in places)
    size = (_WIDTH, below + _height(times) + _GAP)
    parts = "".join(_nest(*nesting) for nesting in places)
    head = _head(figures)
    return svg.Picture(TITLE, description, _sheet(size, head + parts, description))


def _sheet(size: tuple[float, float], inner: str, description: str) -> str:
    width, height = size
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        f' width="{width * 4 / 3:.0f}" height="{height * 4 / 3:.0f}"'
        f' viewBox="0 0 {width:.1f} {height:.1f}" role="img">\n'
        f"<title>{html.escape(TITLE)}</title><desc>{html.escape(description)}</desc>\n"
        f'<rect width="100%" height="100%" rx="6" fill="{palette.PAPER}"/>\n{inner}</svg>\n'
    )


def _head(figures: content.Content) -> str:
    title, state = html.escape(figures.title), html.escape(figures.state)
    results = html.escape("   ".join(" ".join(result) for result in figures.results))
    measured = figures.goodput
    sentence = "" if measured is None else f"Goodput {html.escape(activities.describe(measured))}"
    return (
        f'<g {_TEXT} fill="{palette.INK}">'
        f'<text x="14" y="26" font-size="17" font-weight="bold">{title}'
        f'<tspan dx="10" font-size="12">{state}</tspan></text>'
        f'<text x="14" y="44" font-size="{svg.TEXT_POINTS}" font-weight="bold"'
        f' xml:space="preserve">{results}</text>'
        f'<text x="14" y="60" font-size="{svg.TEXT_POINTS}">{sentence}</text></g>\n'
    )


def _nest(part: svg.Picture, left: float, top: float) -> str:
    """Return a picture at a place of another, in whose points it is drawn."""
    element = part.element
    end = element.index(">")
    root = _POINTS.sub(r'\1="\2"', element[:end])
    attributes = f'<svg x="{left:.1f}" y="{top:.1f}"'
    return f"{root.replace('<svg', attributes, 1)}{element[end:]}\n"


def _height(part: svg.Picture) -> float:
    root = _ROOT.search(part.document)
    if root is None:
        raise RuntimeError("the picture has no height")
    return float(root[1])


def _last_step(root: pathlib.Path) -> int:
    """Return the last step on record."""
    lines = [line for log in root.rglob(outputs.TRAIN_LOG) for line in log.read_text().splitlines()]
    return max((json.loads(line)["step"] for line in lines), default=0)


def _find_worker(runner: int) -> int:
    """Return the process of the worker below that of the command."""
    variable = environment.TF_CONFIG.encode()
    workers = []
    for process in network_usage.descendants(runner):
        for line in pathlib.Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
            name, _, value = line.partition(b"=")
            if name == variable and json.loads(value)["task"]["type"] == "worker":
                workers.append(process)
    return workers[-1]  # the first one supervises it


def main() -> None:
    """Train, keep, and draw."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder, "run")
        record(root)
        keep(root, KEPT)
    IMAGE.write_text(picture().document, encoding="utf-8")
    print(f"wrote {IMAGE}")


if __name__ == "__main__":
    main()
