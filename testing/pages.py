"""The pages of the project: their tables, their blocks of code, and the commands in them."""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Iterable, Sequence

from testing import paths

README = paths.ROOT / "README.md"
ALL = sorted(
    [
        *paths.ROOT.glob("*.md"),
        *paths.PAGES.glob("**/*.md"),
        *paths.EXAMPLES.glob("**/README.md"),
        *paths.ROOT.glob("charts/*/README.md"),
        paths.ROOT / "testing/cluster/README.md",
    ]
)

_LINK = re.compile(r"\]\((?!https:)([^)#]*)#?([^)]*)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.M)


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the rows of the first table below a heading of a page in docs/."""
    text = (paths.PAGES / page).read_text(encoding="utf-8").split(f"{heading}\n", 1)[1]
    table = re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE)[0]
    lines = table.splitlines()[2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


@functools.cache
def anchors(page: pathlib.Path) -> set[str]:
    """Return the names by which links lead into a page; those of headings as GitHub forms them."""
    prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = (re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title) for title in re.findall(_HEADING, prose))
    headings = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return headings.union(re.findall(r'<a id="(.+?)">', prose))


def broken_links(page: pathlib.Path) -> list[str]:
    """Return the links of a page that lead to no file, or to no heading of it."""
    return [
        f"{target}#{anchor}" if anchor else target
        for target, anchor in _LINK.findall(page.read_text(encoding="utf-8"))
        if not _leads(page.parent / target if target else page, anchor)
    ]


def _leads(file: pathlib.Path, anchor: str) -> bool:
    return file.exists() and (not anchor or anchor in anchors(file))


def blocks(page: pathlib.Path, kind: str) -> list[str]:
    """Return the content of every block of code of a kind: console, yaml, python."""
    pairs = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    return [content for language, content in pairs if language == kind]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. The text of a cell may have several lines, and `|`."""
    lines = (_row(row) for row in rows)
    return "".join((_row(head), "|---" * len(head), "|\n", *lines))


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |\n"


def section(text: str, name: str) -> str:
    """Return what a page has between `<!-- name -->` and `<!-- end -->`.

    Raises:
        ValueError: the page has no such section, or several.
    """
    [content] = re.findall(rf"<!-- {re.escape(name)} -->\n(.*?)<!-- end -->", text, re.S)
    return str(content)


def with_section(text: str, name: str, content: str) -> str:
    """Return a page with another text in a section.

    Raises:
        ValueError: the page has no such section, or several.
    """
    begin = f"<!-- {name} -->\n"
    return text.replace(begin + section(text, name), begin + content)


@dataclasses.dataclass(frozen=True)
class PageCommand:
    """One command of a console block, and the lines that the page shows below it."""

    line: str
    shown: tuple[str, ...]


def find_commands(page: pathlib.Path, first: str) -> list[PageCommand]:
    """Return the commands of the console block whose first command begins with these words.

    Raises:
        ValueError: no block begins with them, or several.
    """
    listed = (commands(block) for block in blocks(page, "console"))
    [block] = [block for block in listed if block[0].line.startswith(first)]
    return block


def commands(console: str) -> list[PageCommand]:
    """Return the commands of a console block; a command may continue on further lines."""
    listed = []
    for part in re.split(r"^\$ ", console, flags=re.M)[1:]:
        line, *shown = part.replace("\\\n", " ").splitlines()
        listed.append(PageCommand(" ".join(line.split()), tuple(shown)))
    return listed
