"""The version of all that is released: the file VERSION is its source, other files repeat it."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "VERSION"
PLACES = {
    "*/pyproject.toml": r'(?m)^(version = "|.*"tfparallel-\w+==)',
    "charts/tfparallel-operator/Chart.yaml": r"(?m)^((?:version|appVersion): )",
    "manifests/overlays/*/*.yaml": r"(app\.kubernetes\.io/version: |newTag: |tfparallel-trainer:)",
    "examples/components/image/kustomization.yaml": "(newTag: )",
    "examples/*/job.yaml": "(image: tfparallel-trainer:)",
    "README.md": "(tfparallel-(?:operator|trainer):)",
}
"""Where the version stands: files, and what precedes it in them."""

_VERSION = r"\d[\w.+-]*"


def read() -> str:
    """Return the version.

    Raises:
        ValueError: the file holds none.
    """
    version = FILE.read_text(encoding="utf-8").strip()
    if not re.fullmatch(r"\d+\.\d+\.\d+(-[\w.]+)?", version):
        raise ValueError(f"VERSION is {version!r}: write three numbers, such as 0.2.0")
    return version


def files() -> dict[Path, str]:
    """Return the files that repeat the version, and their text with it."""
    version = read()
    return {
        file: re.sub(f"{before}{_VERSION}", rf"\g<1>{version}", file.read_text(encoding="utf-8"))
        for pattern, before in PLACES.items()
        for file in sorted(ROOT.glob(pattern))
    }
