"""The page of a report in a browser: on a phone, a tablet and a screen."""

import pathlib

import pytest

from testing import browser, report_runs
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
