"""Prints which files cost most in the last run: `python -m testing.run.costs`."""

from testing import paths
from testing.pytest_plugin import times

ROWS = 20
NAMES = ("unit", "essential", "parallel", "serial", "long", "random")
"""The reports of a run, without those of tests that ran once more."""


def main() -> None:
    """Print the files."""
    files = (paths.ROOT / times.FOLDER / f"{name}.json" for name in NAMES)
    reports = [times.read(file) for file in files if file.exists()]
    print(times.render(reports, ROWS), end="")


if __name__ == "__main__":
    main()
