"""`python -m benchmarks.pages.plans`: writes the example of docs/how-to/planner.md and pictures."""

import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator

from benchmarks.pages import redraw
from testing import pages
from tfparallel.planning import option_values, plan_picture, request
from tfparallel_trainer import errors
from tfparallel_trainer.contract import plan

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to/planner.md"
EXAMPLE = "example"
"""Names the block of that page."""
SPLIT_PAGE = ROOT / "docs" / "how-to/model-split-examples.md"
LACKS = "lacks"
"""Names the block of that page that tells what does not fit a device."""
EXAMPLES = ROOT / "examples"
COMMAND = "examples/split-deep-cnn/job.yaml"
"""The arguments of the example; the job is that of `DRAWN`, and has the same picture."""
JOB = ROOT / COMMAND
DRAWN = {
    folder: EXAMPLES / folder / file
    for folder, file in (
        ("split-cnn", "hybrid.yaml"),
        ("split-two-models", "job.yaml"),
        ("split-deep-cnn", "job.yaml"),
        ("split-decoder", "job.yaml"),
        ("split-embedding", "job.yaml"),
    )
}
"""The job whose plan is a picture in the docs, for each example."""


def example(folder: pathlib.Path) -> str:
    """Make the plan in a folder; gives what it prints, without the names of files."""
    done = subprocess.run(
        (
            *(sys.executable, "-m", "tfparallel", "plan", COMMAND),
            *("--output", str(folder)),
        ),
        cwd=ROOT,
        # Not as wide as the terminal of who writes the page.
        env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
        check=True,
        capture_output=True,
        text=True,
    )
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    return "```\n" + "\n".join(line for line in lines if str(folder) not in line) + "\n```\n"


def question(file: pathlib.Path) -> plan.Question:
    """What has to be asked for the plan of a job; cuts that it names are left to the planner."""
    return request.read(file, request.PlanOptions()).question


def planned(file: pathlib.Path, *, whole: bool = False) -> plan.Plan:
    """The plan of a job, or of its model on one device; loads TensorFlow."""
    from tfparallel_trainer.engines.split.planning import planner
    from tfparallel_trainer.objective import replica

    asked = question(file)
    if whole:
        one_device = {"processes": 1, "devices": 1, "mesh": {}, "microbatches": 1}
        asked = asked.model_copy(update=one_device)
    replica.forget_names()  # a process may have built models before
    with _alone(file.parent):
        return planner.answer(asked)


@contextlib.contextmanager
def _alone(folder: pathlib.Path) -> Iterator[None]:
    """Let a module import what lies beside it, and not what another example has by that name."""
    before = sys.path.copy()
    sys.path.insert(0, str(folder))
    for name, module in list(sys.modules.items()):
        if EXAMPLES in pathlib.Path(getattr(module, "__file__", None) or "").parents:
            del sys.modules[name]
    try:
        yield
    finally:
        sys.path[:] = before


def lacks() -> str:
    """What is said of the embedding that does not fit a device; loads TensorFlow."""
    from tfparallel_trainer.engines.split.planning import planner

    file = DRAWN["split-embedding"]
    page = SPLIT_PAGE.read_text(encoding="utf-8")
    asked = question(file).model_copy(
        update={
            "processes": 1,
            "devices": 1,
            "mesh": None,
            "microbatches": None,
            "memory": option_values.size(re.findall(r"--devices 1 --memory (\S+)", page)[0]),
        }
    )
    try:
        planner.answer(asked)
    except errors.BadConfigurationError as error:
        return "\n".join(("```", *textwrap.wrap(f"error: {error}", 98), "```", ""))
    raise AssertionError("it fits")


def image(folder: str) -> pathlib.Path:
    """Where the picture of an example lies."""
    return redraw.IMAGES / f"plan-{folder}.svg"


def main() -> None:
    """Write page and pictures."""
    with tempfile.TemporaryDirectory() as folder:
        shown = example(pathlib.Path(folder))
    for page, name, content in ((PAGE, EXAMPLE, shown), (SPLIT_PAGE, LACKS, lacks())):
        text = page.read_text(encoding="utf-8")
        page.write_text(pages.with_section(text, name, content), encoding="utf-8")
    for name, file in DRAWN.items():
        image(name).write_text(plan_picture.picture(planned(file)).document, encoding="utf-8")
        print(f"wrote {image(name)}")


if __name__ == "__main__":
    main()
