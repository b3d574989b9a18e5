"""`python -m benchmarks.pages.comparisons`: compares the examples.

It writes docs/benchmarks/compare.md.

It takes some minutes, on a machine that does nothing else.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

from benchmarks.pages import redraw
from testing import pages
from tfparallel.compare import comparison_pictures, job_comparison

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks/compare.md"
OPTIONS = ("--seeds", "3", "--slow-worker", "5")
EXAMPLES = ("digits", "mnist")
PICTURES = (comparison_pictures.LOSS, comparison_pictures.SPEED, comparison_pictures.STALENESS)


def compare(example: str) -> str:
    """Compare an example; keep the numbers of its pictures, and return the words."""
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / example
        arguments = ("compare", f"examples/{example}/job.yaml", *OPTIONS, "--output", str(output))
        subprocess.run((sys.executable, "-m", "tfparallel", *arguments), cwd=ROOT, check=True)
        redraw.save_comparison(example, (output / job_comparison.MACHINE).read_bytes())
        _, text = (output / job_comparison.PAGE).read_text(encoding="utf-8").split("\n\n", 1)
    return re.sub(
        r"\]\((.+?)\)",
        lambda match: f"](../images/{redraw.image_of_comparison(example, match[1]).name})",
        text,
    )


def main() -> None:
    """Compare all examples, or those that are named."""
    for example in sys.argv[1:] or EXAMPLES:
        text = compare(example)
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(pages.with_section(page, example, text), encoding="utf-8")
        print(f"wrote {PAGE}")
    redraw.main()


if __name__ == "__main__":
    main()
