"""The command line: python3 -m release [--snapshot], or python3 -m release --chart."""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import release
from images import targets
from release import artifacts, checks
from testing import paths
from testing.cluster import console

BUILD = paths.ROOT / "build"


def main(arguments: Sequence[str]) -> int:
    """Build the files; their names go to standard output."""
    parser = argparse.ArgumentParser(prog="python3 -m release", description=__doc__)
    parser.add_argument("--chart", action="store_true", help="package the chart alone")
    parser.add_argument(
        "--snapshot", action="store_true", help="from any commit, described by Unreleased"
    )
    parser.add_argument("--folder", type=Path, help="where the files go; build/release by default")
    parser.add_argument("--no-images", action="store_true", help="build no image archives")
    parser.add_argument("--engine", default="", help="of the images, as of `make images`")
    parser.add_argument("--base-image", default="", help="of the images, as of `make images`")
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
    version = targets.version()
    notes = "" if options.chart else checks.notes(version, snapshot=options.snapshot)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    artifacts.chart(folder)
    if options.chart:
        return
    (folder / "NOTES.md").write_text(notes, encoding="utf-8")
    if not options.no_images:
        artifacts.image_archives(folder, options.engine, options.base_image)
    artifacts.wheels(folder)
    artifacts.build_context(folder, version)
    artifacts.inventories(folder, version, BUILD / "release-tools")
    artifacts.sums(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
