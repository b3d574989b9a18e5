"""The pages of the project, and the tables in them."""

import re

from testing import paths

ALL = sorted(
    [*paths.ROOT.glob("*.md"), *paths.PAGES.glob("*.md"), paths.ROOT / "testing/cluster/README.md"]
)


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the rows of the first table below a heading of a page in docs/."""
    text = (paths.PAGES / page).read_text(encoding="utf-8").split(f"{heading}\n", 1)[1]
    table = re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE)[0]
    lines = table.splitlines()[2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]
