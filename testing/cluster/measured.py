"""Lets coverage.py measure what pods run: the node gives every container its package and variables.

Images stay as they are: containerd mounts coverage.py into the Python environment that the images
share, and a folder of the host that takes the measurements.
"""

import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from testing import branches

SITE = "/opt/tfparallel/lib/python3.11/site-packages"
INSIDE = "/coverage"
CONFIGURATION = """\

  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    base_runtime_spec = "{specification}"
"""


def configuration(enter: Sequence[str], folder: pathlib.Path) -> str:
    """Return what to add to containerd's configuration; nothing in a run that does not measure."""
    target = os.environ.get(branches.FOLDER_VARIABLE)
    if not target:
        return ""
    default = subprocess.run([*enter, "ctr", "oci", "spec"], capture_output=True, check=True)
    specification = folder / "containers.json"
    specification.write_text(
        json.dumps(_measured(json.loads(default.stdout), pathlib.Path(target)))
    )
    return CONFIGURATION.format(specification=specification)


def _measured(specification: dict[str, Any], target: pathlib.Path) -> dict[str, Any]:
    import coverage

    package = pathlib.Path(coverage.__file__).parent
    (start,) = package.parent.glob("*coverage.pth")
    shutil.copy(branches.CONFIGURATION, target)
    mounts = {package: f"{SITE}/coverage", start: f"{SITE}/{start.name}", target: INSIDE}
    specification["mounts"] += [
        {
            "source": str(source),
            "destination": destination,
            "type": "bind",
            "options": ["bind", "rw" if source == target else "ro"],
        }
        for source, destination in mounts.items()
    ]
    specification["process"]["env"] = [
        f"{branches.FOLDER_VARIABLE}={INSIDE}",
        f"{branches.START_VARIABLE}={INSIDE}/{branches.CONFIGURATION.name}",
    ]
    return specification
