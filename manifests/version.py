"""The version of all that is released: the file VERSION is its source, other files repeat it."""

import re
from pathlib import Path

from images import targets
from testing import paths

PLACES = {
    "*/pyproject.toml": r'(?m)^(version = "|.*"tfparallel-\w+==)',
    "charts/tfparallel-operator/Chart.yaml": r"(?m)^((?:version|appVersion): )",
    "manifests/release/*.yaml": r"(app\.kubernetes\.io/version: |newTag: |tfparallel-trainer:)",
    "examples/components/image/kustomization.yaml": "(newTag: )",
    "examples/*/job.yaml": "(image: tfparallel-trainer:)",
    "README.md": "(tfparallel-(?:operator|trainer):)",
}
"""Where the version stands: files, and what precedes it in them."""


def files() -> dict[Path, str]:
    """Return the files that repeat the version, and their text with it.

    Raises:
        ValueError: the file VERSION holds none.
    """
    version = targets.version()
    if not re.fullmatch(r"\d+\.\d+\.\d+(-[\w.]+)?", version):
        raise ValueError(f"VERSION is {version!r}: write three numbers, such as 0.2.0")
    return {
        file: re.sub(rf"{before}\d[\w.+-]*", rf"\g<1>{version}", file.read_text(encoding="utf-8"))
        for pattern, before in PLACES.items()
        for file in sorted(paths.ROOT.glob(pattern))
    }
