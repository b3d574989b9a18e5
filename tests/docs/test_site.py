"""The site builds without a warning, which a link without a target is, and needs no network."""

import os
import pathlib
import re
import sys

import pytest

from testing import browser, invocation, pages, paths, waiting

_REMOTE = re.compile(r"<(?:script|img|iframe|link rel=.stylesheet)[^>]*(?:src|href)=.?https?:")

_TOO_WIDE = """
(() => {
  const faults = [], width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) faults.push("the page");
  for (const table of document.querySelectorAll("article table")) {
    const columns = table.querySelectorAll("th").length;
    const frame = table.closest(".md-typeset__scrollwrap");
    if (columns > 2 && (columns < 5 || width < 720) && frame.scrollWidth > frame.clientWidth + 1)
      faults.push(`the table of ${table.querySelector("th").textContent}`);
  }
  for (const picture of document.querySelectorAll('article img[src$=".svg"]'))
    if (picture.clientWidth < 0.65 * picture.naturalWidth) faults.push(`small ${picture.alt}`);
  return faults;
})()
"""
"""Wider tables, of measured numbers, scroll on screens, and those of two columns on phones.

Pictures with texts of 8 points scroll where these would be too small to read.
"""
_SEARCH = """
(() => {
  const field = document.querySelector("[data-md-component=search-query]");
  if (field.value !== "gang") {
    document.querySelector("#__search").click();
    field.focus();
    field.value = "gang";
    field.dispatchEvent(new KeyboardEvent("keyup", {key: "g"}));
  }
  const results = document.querySelectorAll(".md-search-result__link");
  return [...results].map(result => new URL(result.href).pathname);
})()
"""


@pytest.fixture(scope="module")
def site(processes: None, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("site")
    build = invocation.execute(
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        f"--site-dir={folder}",
        folder=paths.ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert build.returncode == 0, build.stderr
    assert "WARNING" not in build.stderr
    return folder


def _published(page: pathlib.Path) -> str:
    file = page.relative_to(paths.PAGES if page.is_relative_to(paths.PAGES) else paths.ROOT)
    return str(file).replace("README.md", "index.md")


def test_every_page_is_published_as_html_and_as_markdown(site: pathlib.Path) -> None:
    for page in pages.ALL:
        file = site / _published(page)
        assert file.is_file(), page
        assert file.with_suffix(".html").is_file(), page


def test_llms_txt_lists_every_page_with_a_line_that_says_what_it_is_for(site: pathlib.Path) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^- \[.+?\]\((.+?)\): (.+)$", text, re.M))
    lists = {"index.md", "pages.md", "examples/index.md"}
    parts = {_published(page) for page in paths.EXAMPLES.glob("components/**/README.md")}
    assert {*listed} == {_published(page) for page in pages.ALL} - lists - parts


def test_the_markdown_that_is_published_has_links_that_lead_to_markdown(site: pathlib.Path) -> None:
    for file in site.rglob("*.md"):
        for target in re.findall(r"\]\((?!https:|#)([^)#]+)", file.read_text(encoding="utf-8")):
            assert (file.parent / target).is_file(), f"{file.relative_to(site)}: {target}"


def test_no_page_loads_anything_from_another_host(site: pathlib.Path) -> None:
    for file in site.rglob("*.html"):
        assert not _REMOTE.findall(file.read_text(encoding="utf-8")), file


_in_a_browser = pytest.mark.skipif(browser.find() is None, reason=browser.MISSING)


@pytest.mark.long
@_in_a_browser
@pytest.mark.parametrize("width", [360, 800, 1400])
async def test_every_page_fits_the_screen(
    site: pathlib.Path, width: int, tmp_path: pathlib.Path
) -> None:
    async with browser.opened(tmp_path) as shown:
        await shown.resize(width)
        too_wide = {}
        for page in pages.ALL:
            await shown.open((site / _published(page)).with_suffix(".html"))
            too_wide[page] = await shown.evaluate(_TOO_WIDE)
        assert {page: parts for page, parts in too_wide.items() if parts} == {}
        assert shown.complaints == []
        assert {address.partition(":")[0] for address in shown.requests} <= {"file", "data", "blob"}


@pytest.mark.long
@_in_a_browser
async def test_the_search_needs_no_server(site: pathlib.Path, tmp_path: pathlib.Path) -> None:
    async with browser.opened(tmp_path) as shown:
        await shown.open(site / "index.html")
        results = await waiting.until_async(lambda: shown.evaluate(_SEARCH), "results")
        assert str(site / "how-to/scheduling.html") in results
