"""Measures which branches of the products run, in every process and pod of a test run.

Coverage.py starts in each Python whose environment holds `variables()`; pods get it from the node
(testing/cluster/measured.py). `python -m testing.branches` prints what was measured by package.
"""

import collections
import json
import os
import pathlib
import shutil
from collections.abc import Iterator

from testing import paths

FOLDER_VARIABLE = "COVERAGE_FOLDER"
START_VARIABLE = "COVERAGE_PROCESS_START"
FOLDER = paths.ROOT / "build" / "coverage"
DATA = FOLDER / "data"
"""The combined measurement of all processes; pyproject.toml names the file."""
CONFIGURATION = paths.ROOT / "pyproject.toml"


def variables() -> dict[str, str]:
    """Return the environment in which every Python of this environment is measured."""
    return {FOLDER_VARIABLE: str(FOLDER), START_VARIABLE: str(CONFIGURATION)}


def clear() -> None:
    """Remove earlier measurements, and let pods of any user write into the folder."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    FOLDER.chmod(0o777)


def inherited() -> dict[str, str]:
    """Return the variables that a measured process passes on; empty in any other run."""
    names = (FOLDER_VARIABLE, START_VARIABLE)
    return {name: os.environ[name] for name in names if name in os.environ}


def measure() -> dict[str, float]:
    """Combine what all processes wrote; return the per cent of branches and lines by package."""
    import coverage

    os.environ.setdefault(FOLDER_VARIABLE, str(FOLDER))
    combined = coverage.Coverage(config_file=str(CONFIGURATION))
    combined.combine([str(FOLDER)], keep=True)
    combined.save()
    written = FOLDER / "report.json"
    # A test runs an earlier operator too, from a folder that is gone by now.
    combined.json_report(outfile=str(written), include=[f"{paths.ROOT}/*"])
    covered: collections.Counter[str] = collections.Counter()
    total: collections.Counter[str] = collections.Counter()
    for name, file in json.loads(written.read_text())["files"].items():
        counts = file["summary"]
        for package in _packages(pathlib.PurePosixPath(name)):
            covered[package] += counts["covered_lines"] + counts["covered_branches"]
            total[package] += counts["num_statements"] + counts["num_branches"]
    return {package: 100.0 * covered[package] / count for package, count in total.items() if count}


def _packages(file: pathlib.PurePosixPath) -> Iterator[str]:
    """Yield the product that a file belongs to, and its package within."""
    root = next(at for at, part in enumerate(file.parts) if part.startswith("tfparallel"))
    yield file.parts[root]
    if len(file.parts) > root + 2:
        yield ".".join(file.parts[root : root + 2])


def main() -> None:
    """Print the table."""
    for package, percent in sorted(measure().items()):
        print(f"{package:<40} {percent:5.1f} %")


if __name__ == "__main__":
    main()
