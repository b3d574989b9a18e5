"""Links of pages, and what they lead to."""

import pathlib

from testing import pages

PAGE = """# A `thing`, and [more](other.md)
```sh
# no heading
```
- item
  ```md
  <a id="shown"></a>
  ```
## What's new?
<a id="row"></a>
"""


def test_anchors_are_those_of_forges(tmp_path: pathlib.Path) -> None:
    (page := tmp_path / "page.md").write_text(PAGE, encoding="utf-8")
    assert pages.anchors(page) == {"a-thing-and-more", "whats-new", "row"}


def test_links_lead_to_files_and_headings(tmp_path: pathlib.Path) -> None:
    (tmp_path / "other.md").write_text(PAGE, encoding="utf-8")
    holding = "[a](other.md) [b](other.md#row) [c](https://example.org) [d](#title)"
    broken = "[e](nothing.md) [f](other.md#shown) [g](other.md#no-heading) [h](#nothing)"
    (page := tmp_path / "page.md").write_text(f"# Title\n{holding}\n{broken}\n", encoding="utf-8")
    assert pages.broken_links(page) == [
        "nothing.md",
        "other.md#shown",
        "other.md#no-heading",
        "#nothing",
    ]
