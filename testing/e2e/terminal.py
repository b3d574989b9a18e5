"""A terminal in which the commands of pages run word by word, as a person would run them."""

import contextlib
import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from testing import pages, paths
from testing.cluster import process
from testing.e2e import kubectl_namespaces

LIMIT_SECONDS = 600.0


@dataclasses.dataclass(frozen=True)
class Shell:
    """A terminal with tfparallel, helm and kubectl for one namespace."""

    environment: Mapping[str, str]
    folder: Path = paths.ROOT

    def run(self, line: str, limit: float = LIMIT_SECONDS) -> str:
        """Return what a command prints to standard output.

        Raises:
            AssertionError: it fails; with its output.
        """
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"$ {line}\n{done.stdout}{done.stderr}")
        return done.stdout

    def follow(self, command: pages.PageCommand) -> list[str]:
        """Run a command; return the lines that it prints, which begin as those of its page.

        A page leaves out what differs from run to run: "…" is any number of lines.

        Raises:
            AssertionError: it fails, or does not print what the page shows.
        """
        printed = self.run(command.line).splitlines()
        shown = [line for line in command.shown if line != "…"]
        missing = [
            line
            for line in shown
            if not any(printed_line.startswith(line) for printed_line in printed)
        ]
        if missing:
            raise AssertionError(f"$ {command.line}\n{printed}\nlacks {missing}")
        return printed

    @contextlib.contextmanager
    def watching(self, line: str, output: Path) -> Iterator[None]:
        """Run a command that does not end by itself in the body; its output goes to a file."""
        with (
            output.open("wb") as stream,
            subprocess.Popen(
                ["bash", "-c", f"exec {line}"],
                cwd=self.folder,
                env=self.environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
            ) as watch,
        ):
            try:
                yield
            finally:
                watch.terminate()


def shell(namespace: kubectl_namespaces.KubectlNamespace, folder: Path) -> Shell:
    """Return a terminal whose programs speak to the cluster and this namespace."""
    cluster = namespace.cluster
    programs = folder / "bin"
    programs.mkdir()
    for program in (cluster.kubectl, cluster.helm):
        (programs / program.name).symlink_to(program)
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_bytes(cluster.kubeconfig.read_bytes())
    kubeconfig.chmod(0o600)
    environment = process.environment()
    environment["PATH"] = f"{programs}:{Path(sys.executable).parent}:{environment['PATH']}"
    environment |= {"HOME": str(folder), "KUBECONFIG": str(kubeconfig)}
    terminal = Shell(environment)
    view = json.loads(terminal.run("kubectl config view --output=json"))
    context = view["current-context"]
    terminal.run(f"kubectl config set-context {context} --namespace={namespace.name}")
    return terminal
