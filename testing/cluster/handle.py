"""The handle by which a test uses a running cluster."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from testing import waiting
from testing.cluster import binaries, console, images, kind, netns, process, settings, state

TIMEOUT_SECONDS = 180.0


@dataclass(frozen=True)
class Cluster:
    """A running cluster: where its kubeconfig is, and which kubectl and helm fit it."""

    name: str
    mode: str
    kubeconfig: Path
    kubectl: Path
    helm: Path
    directory: Path

    def run_kubectl(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002
        limit: float = TIMEOUT_SECONDS,
    ) -> str:
        """Run kubectl; return its output, or raise its error."""
        configuration = (
            f"--kubeconfig={self.kubeconfig}",
            f"--cache-dir={self.directory / 'kubectl-cache'}",
        )
        return _run([str(self.kubectl), *configuration, *arguments], input, limit)

    def create_namespace(self, name: str) -> None:
        """Create a namespace; on return it has the service account without which no pod is made."""
        self.run_kubectl("create", "namespace", name)
        account = (f"--namespace={name}", "serviceaccount/default")
        self.run_kubectl("wait", "--for=create", *account, "--timeout=60s")

    def wait_established(self, definition: str) -> None:
        """Wait until the objects of a CustomResourceDefinition can be created.

        `kubectl wait` and its jsonpath fail on a definition whose conditions are still null.
        """

        def conditions() -> dict[str, str]:
            resource = json.loads(self.run_kubectl("get", f"crd/{definition}", "--output=json"))
            listed = resource.get("status", {}).get("conditions") or ()
            return {condition["type"]: condition["status"] for condition in listed}

        waiting.until(
            conditions,
            f"{definition} is established",
            when=lambda resource: resource.get("Established") == "True",
        )

    def run_helm(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002
        limit: float = TIMEOUT_SECONDS,
    ) -> str:
        """Run helm; return its output. Its cache is in the cluster's folder."""
        command = [str(self.helm), f"--kubeconfig={self.kubeconfig}", *arguments]
        return _run(command, input, limit, HOME=str(self.directory / "helm"))

    def load_image(self, archive: Path) -> None:
        """Load a docker-archive into the node, so that pods find its image without a pull."""
        if self.mode == settings.Kind.mode:
            kind.load_image(self.name, archive)
        else:
            images.load(self.inside(), archive)

    def inside(self, *command: str) -> list[str]:
        """The command that runs `command` in a full cluster's network, mounts and processes."""
        return [*netns.enter(self._state()), *command]

    def inside_network(self, *command: str) -> list[str]:
        """The same with the files of this machine."""
        return [*netns.enter_network(self._state()), *command]

    def _state(self) -> state.ClusterState:
        cluster_state = state.load(self.directory)
        if cluster_state is None:
            raise console.ClusterError(f"The cluster {self.name} does not run.")
        return cluster_state


def at(name: str, mode: str, directory: Path) -> Cluster:
    """The handle of the cluster in this folder."""
    return Cluster(
        name=name,
        mode=mode,
        kubeconfig=kubeconfig(directory),
        kubectl=binaries.path("kubectl"),
        helm=binaries.path("helm"),
        directory=directory,
    )


def kubeconfig(directory: Path) -> Path:
    """The path of the administrator's kubeconfig."""
    return directory / "kubeconfig"


def _run(command: list[str], standard_input: str | None, limit: float, **variables: str) -> str:
    done = subprocess.run(
        command,
        input=standard_input,
        env=process.environment() | variables,
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    if done.returncode != 0:
        shown = " ".join(Path(part).name if part == command[0] else part for part in command)
        raise console.ClusterError(f"{shown}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
