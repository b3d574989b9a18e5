"""What the last run cost: `python -m testing.run.durations` prints the dearest files.

With `--record` it writes the seconds of each file into testing/durations.json, which the order of
the next runs follows.
"""

import json
import sys
from collections.abc import Iterable, Mapping

from testing import paths
from testing.pytest_plugin import order, times
from testing.pytest_plugin.tiers import Tier

ROWS = 20


def last_reports() -> list[times.Report]:
    """The reports of the runner's last run, without tests that ran once more."""
    names = ("unit", "essential", "parallel", "serial", "long", "random")
    files = (paths.ROOT / times.FOLDER / f"{name}.json" for name in names)
    return [times.read(file) for file in files if file.exists()]


def recorded(
    before: Mapping[str, int], reports: Iterable[times.Report], existing: Iterable[str]
) -> dict[str, int]:
    """The seconds of each file: of this run, or as before where it did not run."""
    measured: dict[str, float] = {}
    for (file, tier), cost in times.by_file(reports).items():
        if tier != Tier.LONG.title:
            measured[file] = measured.get(file, 0.0) + cost.seconds
    seconds = {**before, **{file: round(value) for file, value in measured.items()}}
    return {file: seconds[file] for file in sorted(set(existing) & seconds.keys())}


def main() -> None:
    """Print or record."""
    reports = last_reports()
    if "--record" not in sys.argv[1:]:
        print(times.render(reports, ROWS), end="")
        return
    files = paths.ROOT.glob("tests/**/test_*.py")
    existing = [file.relative_to(paths.ROOT).as_posix() for file in files]
    content = recorded(order.durations(), reports, existing)
    order.DURATIONS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
