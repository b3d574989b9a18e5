"""The page of a report in a browser: on a phone, a tablet and a screen, and on paper."""

import pathlib
import re
import shutil

import pytest

from testing import browser, invocation, report_runs
from tfparallel.report import page

pytestmark = [
    pytest.mark.long,
    pytest.mark.usefixtures("processes"),
    pytest.mark.skipif(browser.find() is None, reason=browser.MISSING),
]

RUNS = {
    "loss": report_runs.with_a_loss(),
    "split": report_runs.of_a_split_model(),
    "pipeline": report_runs.of_a_split_model(stages=8, data=1, tensor=4),
}
PAPERS = {"A4": (210 / 25.4, 297 / 25.4), "Letter": (8.5, 11.0)}
"""Inches."""
MARGIN = 15 / 25.4
"""Inches, as the page asks for."""

FAULTS = """
(() => {
  const faults = [], width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) faults.push(
    `the page is ${document.documentElement.scrollWidth} wide`);
  for (const element of document.querySelectorAll("h1, h2, p, dd, td, th, figure, svg")) {
    const box = element.getBoundingClientRect();
    if (box.width && box.right > width + 1) faults.push(`${element.tagName} reaches ${box.right}`);
  }
  for (const svg of document.querySelectorAll("svg")) {
    const frame = svg.getBoundingClientRect(), title = svg.querySelector("title").textContent;
    if (!frame.width) continue;
    const texts = [...svg.querySelectorAll("text")].map(text => [text.textContent.trim(),
      text.getBoundingClientRect()]);
    texts.forEach(([words, box], place) => {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1
          || box.bottom > frame.bottom + 1) faults.push(`${title}: ${words} is cut off`);
      for (const [others, other] of texts.slice(place + 1))
        if (box.left < other.right - 1 && other.left < box.right - 1
            && box.top < other.bottom - 3 && other.top < box.bottom - 3)
          faults.push(`${title}: ${words} covers ${others}`);
    });
  }
  return faults;
})()
"""

SHOWN = """[...document.querySelectorAll("svg")].filter(svg => svg.getBoundingClientRect().width)
  .map(svg => svg.querySelector("title").textContent)"""


@pytest.mark.parametrize("name", RUNS)
async def test_a_page_fits_every_screen(name: str, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page.render(RUNS[name], report_runs.at(100)), encoding="utf-8")
    async with browser.opened(tmp_path / "profile") as shown:
        for width in (360, 800, 1400):
            await shown.resize(width)
            await shown.open(file)
            assert await shown.evaluate(FAULTS) == [], width
            titles = await shown.evaluate(SHOWN)
            assert len(set(titles)) == len(titles) > 6
        assert shown.complaints == []
        assert set(shown.requests) == {file.as_uri(), "data:,"} & set(shown.requests)


BLOCKS = """[...document.querySelectorAll("figure, tr")].filter(one => one.offsetHeight)
  .map(one => [one.offsetHeight, getComputedStyle(one).breakInside])"""

HIDDEN = """[...document.querySelectorAll("nav, thead, pre")]
  .map(one => [one.tagName, one.getBoundingClientRect().height > 0])"""


@pytest.mark.parametrize("paper", PAPERS)
@pytest.mark.parametrize("name", RUNS)
async def test_a_page_fits_paper(name: str, paper: str, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page.render(RUNS[name], report_runs.at(100)), encoding="utf-8")
    width, height = (round(96 * (inches - 2 * MARGIN)) for inches in PAPERS[paper])
    async with browser.opened(tmp_path / "profile") as shown:
        await shown.set_medium("print")
        await shown.resize(width)
        await shown.open(file)
        assert await shown.evaluate(FAULTS) == []
        for block, inside in await shown.evaluate(BLOCKS):
            assert (block < height, inside) == (True, "avoid")
        visible = dict(await shown.evaluate(HIDDEN))
        assert visible == {"NAV": False, "THEAD": True, "PRE": True}  # a closed manifest is printed
        await shown.print_pdf(tmp_path / "report.pdf", PAPERS[paper])
    pages = re.findall(rb"/Type\s*/Page\b", (tmp_path / "report.pdf").read_bytes())
    assert 3 <= len(pages) <= 8


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="pdftotext (poppler) is missing")
@pytest.mark.parametrize("name", RUNS)
async def test_no_heading_is_printed_without_what_follows(
    name: str, tmp_path: pathlib.Path
) -> None:
    text = page.render(RUNS[name], report_runs.at(100))
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    async with browser.opened(tmp_path / "profile") as shown:
        await shown.open(tmp_path / "report.html")
        await shown.print_pdf(tmp_path / "report.pdf", PAPERS["A4"])
    printed = invocation.execute(
        "pdftotext", "-layout", "report.pdf", "-", folder=tmp_path, check=True
    ).stdout.split("\f")
    sheets = [sheet.strip().splitlines() for sheet in printed if sheet.strip()]
    numbers = [lines[-1].split("  ")[-1].strip() for lines in sheets]
    assert numbers == [f"{number} of {len(sheets)}" for number in range(1, len(sheets) + 1)]
    for section in text.split("<section ")[1:]:
        heading = re.findall(r"<h2[^>]*>(.*?)</h2>", section)[0]
        follows = re.findall(r"<dt>(.*?)</dt>|<text[^>]*: 700;[^>]*>(.*?)</text>", section)[0]
        [sheet] = [lines for lines in sheets if heading in map(str.strip, lines)]
        assert any("".join(follows).split(":")[0] in line for line in sheet), heading
