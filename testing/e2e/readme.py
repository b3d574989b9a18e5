"""The README's commands for a cluster, run word by word as a person would run them."""

import contextlib
import dataclasses
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from testing import pages, paths
from testing.cluster import process
from testing.e2e import namespaces

PAGE = paths.ROOT / "README.md"
LIMIT_SECONDS = 300.0


def commands(first: str) -> list[pages.Command]:
    """Return the commands of the console block whose first command begins with these words.

    Raises:
        ValueError: no block begins with them, or several.
    """
    blocks = [pages.commands(block) for block in pages.blocks(PAGE, "console")]
    [block] = [block for block in blocks if block[0].line.startswith(first)]
    return block


@dataclasses.dataclass(frozen=True)
class Shell:
    """A terminal in the project's folder, with helm and kubectl for one namespace."""

    environment: Mapping[str, str]

    def run(self, line: str) -> str:
        """Return what a command prints.

        Raises:
            AssertionError: it fails; with its words.
        """
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=paths.ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"$ {line}\n{done.stdout}{done.stderr}")
        return done.stdout

    @contextlib.contextmanager
    def watching(self, line: str, output: Path) -> Iterator[None]:
        """Meanwhile a command that does not end by itself prints to a file."""
        with (
            output.open("wb") as stream,
            subprocess.Popen(
                ["bash", "-c", f"exec {line}"],
                cwd=paths.ROOT,
                env=self.environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
            ) as watch,
        ):
            try:
                yield
            finally:
                watch.terminate()


def shell(namespace: namespaces.Namespace, folder: Path) -> Shell:
    """Return a terminal whose kubectl and helm are the cluster's, and speak to this namespace."""
    cluster = namespace.cluster
    programs = folder / "bin"
    programs.mkdir()
    for program in (cluster.kubectl, cluster.helm):
        (programs / program.name).symlink_to(program)
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_bytes(cluster.kubeconfig.read_bytes())
    kubeconfig.chmod(0o600)
    environment = process.environment()
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    environment |= {"HOME": str(folder), "KUBECONFIG": str(kubeconfig)}
    terminal = Shell(environment)
    view = json.loads(terminal.run("kubectl config view --output=json"))
    context = view["current-context"]
    terminal.run(f"kubectl config set-context {context} --namespace={namespace.name}")
    return terminal
