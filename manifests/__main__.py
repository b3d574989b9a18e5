"""Writes the generated files: `python -m manifests [--check]`.

With --check nothing is written: files that differ are named, and the exit status is 1.
"""

import argparse
import sys
from pathlib import Path

from manifests import (
    alerts,
    chart_values,
    command_reference,
    dashboard,
    resource,
    schematics,
    sections,
    version,
)
from testing import paths

SOURCES = (
    *(version, resource, chart_values, alerts, dashboard),
    *(command_reference, sections, schematics),
)


def main(arguments: list[str]) -> int:
    """Write the files, or with --check compare them."""
    parser = argparse.ArgumentParser(prog="python -m manifests", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, name what differs")
    check = parser.parse_args(arguments).check
    different = {path: text for path, text in generated().items() if _read(path) != text}
    for path, text in different.items():
        name = path.relative_to(paths.ROOT)
        if check:
            print(f"{name} differs from its source: run `make manifests`")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    return 1 if check and different else 0


def generated() -> dict[Path, str]:
    """Return every generated file and its text."""
    return {path: text for source in SOURCES for path, text in source.files().items()}


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
