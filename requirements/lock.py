"""Pin the requirements: versions and hashes, and no address of an index."""

import pathlib
import subprocess
import sys

FOLDER = pathlib.Path(__file__).parent
EVERYTHING = FOLDER / "dev.txt"
OPTIONS = (
    "--python-version=3.11",
    "--generate-hashes",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--no-annotate",
    "--no-header",
    "--quiet",
)


def lock(name: str, *more: str) -> None:
    """Compile NAME.in into NAME.txt."""
    source, target = FOLDER / f"{name}.in", FOLDER / f"{name}.txt"
    uv = pathlib.Path(sys.executable).parent / "uv"
    command = [str(uv), "pip", "compile", *OPTIONS, *more, str(source), "-o", str(target)]
    subprocess.run(command, check=True)


def main() -> None:
    """Pin everything together first, then each part at the same versions."""
    lock("dev")
    for part in ("build", "demo", "docs", "operator", "trainer", "trainer-cuda"):
        lock(part, "-c", str(EVERYTHING))
    for alone in ("examples", "keras2"):
        lock(alone, "--no-deps")
    for separate in ("peers-jax", "peers-torch", "release"):
        lock(separate)


if __name__ == "__main__":
    main()
