"""The site builds without a warning, which a link without a target is, and needs no network."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from testing import pages, paths

_REMOTE = re.compile(r"<(?:script|img|iframe|link rel=.stylesheet)[^>]*(?:src|href)=.?https?:")


@pytest.fixture(scope="module")
def site(processes: None, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("site")
    build = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", f"--site-dir={folder}"],
        cwd=paths.ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
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
    lists = {"index.md", "examples/index.md"}
    parts = {_published(page) for page in paths.EXAMPLES.glob("components/**/README.md")}
    assert {*listed} == {_published(page) for page in pages.ALL} - lists - parts


def test_the_markdown_that_is_published_has_links_that_lead_to_markdown(site: pathlib.Path) -> None:
    for file in site.rglob("*.md"):
        for target in re.findall(r"\]\((?!https:|#)([^)#]+)", file.read_text(encoding="utf-8")):
            assert (file.parent / target).is_file(), f"{file.relative_to(site)}: {target}"


def test_no_page_loads_anything_from_another_host(site: pathlib.Path) -> None:
    for file in site.rglob("*.html"):
        assert not _REMOTE.findall(file.read_text(encoding="utf-8")), file
