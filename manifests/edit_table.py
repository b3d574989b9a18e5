"""The table of docs/explanation/life.md: what an edit of each field does to a job, by its state."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs/explanation/life.md"


def page() -> str:
    """Return the page with the table that the decisions of today make."""
    sys.path.append(str(ROOT))  # The tests' jobs are no package that is installed.
    from testing.operator import edit_effects

    before, mark, rest = FILE.read_text(encoding="utf-8").partition("<!-- edits -->\n")
    _, end, after = rest.partition("<!-- end -->")
    return before + mark + edit_effects.table() + end + after
