"""`python -m benchmarks.pages.comparisons`: compares the examples.

It writes docs/benchmarks/compare.md.

It takes some minutes, on a machine that does nothing else.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

from testing import pages
from tfparallel.compare import command, draw

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks/compare.md"
IMAGES = ROOT / "docs" / "images"
OPTIONS = ("--seeds", "3", "--slow-worker", "5")
EXAMPLES = ("digits", "mnist")
PICTURES = (draw.LOSS, draw.SPEED, draw.STALENESS)


def image(example: str, picture: str) -> pathlib.Path:
    """Where a picture of the page lies."""
    return IMAGES / f"compare-{example}-{picture}"


def compare(example: str) -> str:
    """Compare an example; leaves its pictures in the docs and gives the words."""
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / example
        arguments = ("compare", f"examples/{example}/job.yaml", *OPTIONS, "--output", str(output))
        subprocess.run((sys.executable, "-m", "tfparallel", *arguments), cwd=ROOT, check=True)
        IMAGES.mkdir(exist_ok=True)
        for picture in PICTURES:
            image(example, picture).write_bytes((output / picture).read_bytes())
        _, words = (output / command.PAGE).read_text(encoding="utf-8").split("\n\n", 1)
    return re.sub(
        r"\]\((.+?)\)",
        lambda match: f"](../{image(example, match[1]).relative_to(ROOT / 'docs')})",
        words,
    )


def main() -> None:
    """Compare all examples, or those that are named."""
    for example in sys.argv[1:] or EXAMPLES:
        words = compare(example)
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(pages.with_section(page, example, words), encoding="utf-8")
        print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
