"""What the site adds to MkDocs: pages from outside of docs/, the navigation, Markdown, llms.txt.

README.md is the first page. docs/pages.md lists every page below a heading; that is the navigation,
and llms.txt.
"""

import itertools
import pathlib
import posixpath
import re
from collections.abc import Iterator

from mkdocs.config import defaults
from mkdocs.structure import pages
from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).parents[2]
FIRST = "README.md"
LISTS = ("docs/pages.md", "examples/README.md")
"""Pages with tables of pages."""
PUBLISHED = (".md", ".svg")
"""What links may lead to; the site has no code."""
_SECTION = re.compile(r"^##? (.+)$")
_ROW = re.compile(r"^\| \[(.+?)\]\((\S+?)\) \| (.+) \|$")
_TABLE = re.compile(r"<table>.*?</table>", re.S)
_HEADING_CELL = re.compile(r"<th>(.*?)</th>")
_CELL = re.compile(r"<td>(.*?)</td>")
_CODE = re.compile(r"<code>.*?</code>")
_BREAK = re.compile(r"(?<=[\w;])[./,=_:](?=[\w&])")
_LINK = re.compile(r"\[([^\[\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")


def on_config(config: defaults.MkDocsConfig) -> None:
    """Set the navigation: the pages of the lists, and the lists first."""
    sections = _sections()
    listed = {file for rows in sections.values() for _, file, _ in rows}
    config.nav = [{config.site_name: ["index.md", "pages.md"]}]
    for section, rows in sections.items():
        config.nav.append({section: [{title: _site_path(file)} for title, file, _ in rows]})
    remaining_pages = [
        _site_path(file) for file in _repository_pages() if file not in {FIRST, *listed}
    ]
    config.nav[-1][section] = [*remaining_pages, *config.nav[-1][section]]


def on_files(listed: Files, config: defaults.MkDocsConfig) -> None:
    """Add the pages that lie next to what they describe."""
    for file in _repository_pages():
        path = str(ROOT / file)
        listed.append(File.generated(config, _site_path(file), abs_src_path=path))


def on_page_markdown(
    markdown: str, page: pages.Page, config: defaults.MkDocsConfig, files: Files
) -> str:
    """Let links lead to where the site has the pages; return the text."""
    source = pathlib.Path(page.file.abs_src_path or "").relative_to(ROOT)
    page.meta.setdefault("description", _descriptions().get(page.file.src_uri, ""))

    def _link(match: re.Match[str]) -> str:
        text, path, anchor = match.groups()
        target = posixpath.normpath(posixpath.join(source.parent.as_posix(), path))
        if pathlib.Path(target).suffix not in PUBLISHED:
            return text
        start = posixpath.dirname(page.file.src_uri)
        return f"[{text}]({posixpath.relpath(_site_path(target), start or '.')}{anchor or ''})"

    return _LINK.sub(_link, markdown)


def on_page_content(
    html: str, page: pages.Page, config: defaults.MkDocsConfig, files: Files
) -> str:
    """Return the page with tables that narrow screens can show, as assets/site.css does."""
    return _TABLE.sub(_label, html)


def _label(table: re.Match[str]) -> str:
    """Return a table whose cells have the names of their columns."""
    names = itertools.cycle(_HEADING_CELL.findall(table[0]))

    def _cell(cell: re.Match[str]) -> str:
        # Python-Markdown keeps the escape of bars in code.
        content = _CODE.sub(_breakable, cell[1].replace("\\|", "|"))
        return f'<td data-label="{next(names)}">{content}</td>'

    return _CELL.sub(_cell, table[0])


def _breakable(code: re.Match[str]) -> str:
    """Return a name that lines may break between its parts."""
    return _BREAK.sub(r"\g<0><wbr>", code[0])


def on_post_page(output: str, page: pages.Page, config: defaults.MkDocsConfig) -> None:
    """Publish the page's Markdown next to it."""
    file = pathlib.Path(config.site_dir, page.file.dest_uri).with_suffix(".md")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page.markdown or "", encoding="utf-8")


def on_post_build(config: defaults.MkDocsConfig) -> None:
    """Write llms.txt, the list of pages for programs that read."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for section, rows in _sections().items():
        lines += ["", f"## {section}", ""]
        lines += [
            f"- [{title}]({_site_path(file)}): {description}" for title, file, description in rows
        ]
    text = "\n".join(lines) + "\n"
    pathlib.Path(config.site_dir, "llms.txt").write_text(text, encoding="utf-8")


def _sections() -> dict[str, list[tuple[str, str, str]]]:
    """Return title, path in the repository and words of the pages below each heading."""
    sections: dict[str, list[tuple[str, str, str]]] = {}
    for page in LISTS:
        for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
            if heading := _SECTION.match(line):
                rows = sections.setdefault(heading[1], [])
            elif row := _ROW.match(line):
                file = posixpath.normpath(posixpath.join(posixpath.dirname(page), row[2]))
                rows.append((row[1], file, row[3]))
    return {heading: rows for heading, rows in sections.items() if rows}


def _descriptions() -> dict[str, str]:
    rows = (row for section in _sections().values() for row in section)
    return {_site_path(file): description.replace("`", "") for _, file, description in rows}


def _repository_pages() -> Iterator[str]:
    """Yield the pages outside of docs/."""
    yield from (
        FIRST,
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "testing/cluster/README.md",
    )
    for folder in ("charts", "examples"):
        for file in sorted((ROOT / folder).rglob("README.md")):
            yield file.relative_to(ROOT).as_posix()


def _site_path(file: str) -> str:
    """Return where the site has a file of the repository."""
    return file.removeprefix("docs/").replace("README.md", "index.md")
