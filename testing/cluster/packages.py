"""Programs that come from Debian packages: installed when a command is missing, never otherwise.

A machine that has containerd from elsewhere, for example, keeps it, because only missing commands
count.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from testing.cluster import console, process

LOCK_SECONDS = 300
PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "ip": "iproute2",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ipset": "ipset",
    "mount": "mount",
    "nsenter": "util-linux",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
}
NODE = ("containerd", "runc", "ip", "iptables", "conntrack", "mount", "nsenter")
CNI_PACKAGE = "containernetworking-plugins"
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CNI_PLUGINS = ("bridge", "host-local", "loopback")


def ensure(commands: Iterable[str]) -> None:
    """Install the packages of those commands that this machine lacks."""
    install(PACKAGES[command] for command in commands if find(command) is None)


def ensure_node() -> None:
    """Install what a node needs, including network plugins."""
    missing = [PACKAGES[command] for command in NODE if find(command) is None]
    install([*missing, *([] if cni_folder() else [CNI_PACKAGE])])


def cni_folder() -> Path | None:
    """Where the network plugins are, if they are here."""
    for folder in CNI_FOLDERS:
        if all((folder / plugin).exists() for plugin in CNI_PLUGINS):
            return folder
    return None


def find(command: str) -> str | None:
    """The command's path; administrators' folders count also when PATH lacks them."""
    return shutil.which(command, path=process.environment()["PATH"])


def install(packages: Iterable[str]) -> None:
    """Install Debian packages, without recommended ones."""
    names = sorted(set(packages))
    if not names:
        return
    named = " ".join(names)
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise console.ClusterError(f"Please install what Debian calls: {named}")
    console.say(f"installing {named}")
    options = ["-qq", "-o", f"DPkg::Lock::Timeout={LOCK_SECONDS}"]
    for action in (["update"], ["install", "--yes", "--no-install-recommends", *names]):
        done = subprocess.run(
            ["apt-get", *options, *action],
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise console.ClusterError(f"apt-get {action[0]} failed:\n{done.stderr.strip()}")
