"""The command line: python3 -m release [--snapshot], or python3 -m release --chart."""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import release
from images import targets
from release import artifacts, changelog
from testing import pages
from testing.cluster import console

BUILD = targets.ROOT / "build"


def main(arguments: Sequence[str]) -> int:
    """Build the files; their names go to standard output."""
    parser = argparse.ArgumentParser(prog="python3 -m release", description=__doc__)
    parser.add_argument("--chart", action="store_true", help="package the chart alone")
    parser.add_argument(
        "--snapshot", action="store_true", help="from any commit, described by Unreleased"
    )
    parser.add_argument("--folder", type=Path, help="where the files go; build/release by default")
    parser.add_argument("--no-images", action="store_true", help="build no image archives")
    parser.add_argument("--base-image", default="", help="of the images")
    options = parser.parse_args(arguments)
    folder = options.folder or BUILD / ("chart" if options.chart else "release")
    try:
        _build(folder, options)
    except (release.ReleaseError, console.ClusterError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for file in sorted(folder.iterdir()):
        print(file)
    return 0


def _build(folder: Path, options: argparse.Namespace) -> None:
    version = targets.OPERATOR.version
    notes = "" if options.chart else _check(version, snapshot=options.snapshot)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    artifacts.chart(folder)
    if options.chart:
        return
    (folder / "NOTES.md").write_text(notes, encoding="utf-8")
    artifacts.wheels(folder)
    context = artifacts.build_context(folder, version)
    artifacts.inventories(folder, version, BUILD / "release-tools")
    missing = "IMAGES=0."
    if not options.no_images:
        missing = artifacts.image_archives(folder, options.base_image)
    if missing:
        print(f"release: no image archives: {missing} {context.name} builds them.", file=sys.stderr)
    artifacts.sums(folder)


def _check(version: str, *, snapshot: bool) -> str:
    """Return the notes of the release.

    Raises:
        ReleaseError: the changelog or the commit is not that of a release.
    """
    text = changelog.FILE.read_text(encoding="utf-8")
    notes = changelog.section(text, version, snapshot=snapshot)
    if broken := pages.broken_links(changelog.FILE):
        raise release.ReleaseError(f"CHANGELOG.md links to {broken[0]}, which does not exist.")
    if snapshot:
        return notes
    if _git("status", "--porcelain"):
        raise release.ReleaseError("files are not committed: commit them, or set SNAPSHOT=1.")
    if f"v{version}" not in _git("tag", "--points-at", "HEAD").split():
        raise release.ReleaseError(
            f"this commit has no tag v{version}: run `git tag --sign v{version}`, or set"
            " SNAPSHOT=1."
        )
    return notes


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(targets.ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
