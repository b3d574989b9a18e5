"""`python -m tests.local.plans`: writes the example of docs/planner.md."""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "planner.md"
IMAGE = ROOT / "docs" / "images" / "plan-split-deep-cnn.svg"
COMMAND = "examples/split-deep-cnn/model.py --devices 4 --mesh stage=4 --batch 64"
MODEL = ROOT / COMMAND.split()[0]

_BLOCK = re.compile(r"(<!-- example -->\n).*?(<!-- end -->)", re.DOTALL)


def block(page: str) -> str:
    """What the page shows."""
    return page.partition("<!-- example -->\n")[2].partition("<!-- end -->")[0]


def example(folder: pathlib.Path) -> str:
    """Make the plan in a folder; gives what it prints, without the names of files."""
    done = subprocess.run(
        (
            *(sys.executable, "-m", "tfparallel_operator.cli", "plan", *COMMAND.split()),
            *("--output", str(folder)),
        ),
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    return "```\n" + "\n".join(line for line in lines if str(folder) not in line) + "\n```\n"


def main() -> None:
    """Write page and picture."""
    with tempfile.TemporaryDirectory() as folder:
        shown = example(pathlib.Path(folder))
        IMAGE.write_bytes(pathlib.Path(folder, "plan.svg").read_bytes())
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(_BLOCK.sub(lambda found: found[1] + shown + found[2], page), encoding="utf-8")


if __name__ == "__main__":
    main()
