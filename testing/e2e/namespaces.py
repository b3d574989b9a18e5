"""A namespace of a test, spoken to with kubectl as a person would."""

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testing.cluster import handle, process
from tfparallel_operator.api import names

Object = dict[str, Any]

POLL_SECONDS = 0.5
JOB_SECONDS = 400.0
"""How long a short job may take on two busy cores."""

GONE_SECONDS = 90.0
CHILDREN = "pods,services,configmaps,networkpolicies"


@dataclass(frozen=True)
class Namespace:
    """One namespace, and kubectl for it."""

    cluster: handle.Cluster
    name: str

    def kubectl(self, *arguments: str, input: str | None = None) -> str:  # noqa: A002
        """What kubectl prints for this namespace."""
        return self.cluster.run_kubectl(f"--namespace={self.name}", *arguments, input=input)

    def apply(self, *documents: Object) -> None:
        """Apply manifests as kubectl does it by default: with strict validation."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)})
        self.kubectl("apply", "--filename=-", input=text)

    def job(self, name: str) -> Object:
        """A job as the API server has it."""
        found: Object = json.loads(self.kubectl("get", "tfpj", name, "--output=json"))
        return found

    def pods(self, job: str) -> dict[str, Object]:
        """The pods of a job by name."""
        shown = ("--output=json", "--show-managed-fields")
        listing = self.kubectl("get", "pods", f"--selector={_of(job)}", *shown)
        return {pod["metadata"]["name"]: pod for pod in json.loads(listing)["items"]}

    def wait(
        self, name: str, reached: Callable[[Object], bool], limit: float = JOB_SECONDS
    ) -> Object:
        """The job, once its status is as wanted; when it never is, all that is known is raised."""
        deadline = time.monotonic() + limit
        while not reached((found := self.job(name)).get("status") or {}):
            if time.monotonic() > deadline:
                raise AssertionError(f"{name} did not get there:\n{self.describe(name)}")
            time.sleep(POLL_SECONDS)
        return found

    def wait_ended(self, name: str, limit: float = JOB_SECONDS) -> Object:
        """The job, once it has succeeded or failed."""
        return self.wait(name, lambda s: s.get("state") in {"Succeeded", "Failed"}, limit)

    def lose(self, pod: str) -> None:
        """Delete a pod as the loss of its node does: without a chance to end in order."""
        self.kubectl("delete", "pod", pod, "--grace-period=0", "--force")

    def evict(self, pod: str) -> None:
        """Ask a pod to leave as the drain of its node does."""
        document = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": self.name},
        }
        path = f"/api/v1/namespaces/{self.name}/pods/{pod}/eviction"
        self.kubectl("create", f"--raw={path}", "--filename=-", input=json.dumps(document))

    def crash(self, pod: str) -> None:
        """Kill the process of a pod from outside; the pod stays."""
        found = json.loads(self.kubectl("get", "pod", pod, "--output=json"))
        [container] = found["status"]["containerStatuses"]
        identity = container["containerID"].removeprefix("containerd://")
        kill = ("ctr", "--namespace=k8s.io", "tasks", "kill", "--signal=SIGKILL", identity)
        subprocess.run(self.cluster.inside(*kill), check=True, capture_output=True)

    def wait_gone(self, job: str) -> None:
        """Wait until nothing of a deleted job is left."""
        deadline = time.monotonic() + GONE_SECONDS
        while left := self.children(job):
            if time.monotonic() > deadline:
                raise AssertionError(f"of the deleted job {job} there are still:\n{left}")
            time.sleep(POLL_SECONDS)

    def children(self, job: str) -> str:
        """The names of all objects of a job, with their kinds."""
        return self.kubectl("get", CHILDREN, f"--selector={_of(job)}", "--output=name").strip()

    def describe(self, job: str) -> str:
        """All that a person would look at when a job does not do what it should."""
        parts = [json.dumps(self.job(job).get("status"), indent=1)]
        parts.append(self.kubectl("get", "pods", "--output=wide"))
        parts.append(self.kubectl("get", "events", "--sort-by=.lastTimestamp"))
        for pod in self.pods(job):
            with contextlib.suppress(Exception):
                parts.append(f"--- {pod}\n{self.kubectl('logs', pod, '--tail=40')}")
        return "\n".join(parts)

    @contextlib.contextmanager
    def following(self, pod: str, file: Path) -> Iterator[None]:
        """Write the log of a pod to the file, to the end of the pod, which may be deleted."""
        with self._writing(file, "logs", pod, "--follow") as logs:
            process.wait_until(
                f"the log of {pod}", lambda: bool(file.stat().st_size), (), GONE_SECONDS
            )
            yield
            logs.wait(GONE_SECONDS)

    @contextlib.contextmanager
    def watching(self, file: Path) -> Iterator[None]:
        """Meanwhile write every version of every job to the file, which `versions` reads."""
        path = f"/apis/{names.API_VERSION}/namespaces/{self.name}/{names.PLURAL}"
        # A watch from a version on tells all that comes after it, however late it connects.
        begin = self._raw(path)["metadata"]["resourceVersion"]
        with self._writing(file, "get", f"--raw={path}?watch=1&resourceVersion={begin}"):
            yield
            last = _numbers(self._raw(path)["items"])
            process.wait_until(
                "the last versions", lambda: last <= _numbers(versions(file)), (), GONE_SECONDS
            )

    def _raw(self, path: str) -> Object:
        """What the API server answers."""
        answer: Object = json.loads(self.kubectl("get", f"--raw={path}"))
        return answer

    @contextlib.contextmanager
    def _writing(self, file: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Meanwhile let kubectl write what it prints to the file."""
        command = [
            str(self.cluster.kubectl),
            f"--kubeconfig={self.cluster.kubeconfig}",
            f"--namespace={self.name}",
            *arguments,
        ]
        with file.open("w", encoding="utf-8") as output:
            running = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)
        try:
            yield running
        finally:
            running.terminate()
            running.wait()


def versions(file: Path) -> list[Object]:
    """The versions of jobs that `watching` has written so far."""
    whole_lines = file.read_bytes().split(b"\n")[:-1]
    return [json.loads(line)["object"] for line in whole_lines]


def _numbers(found: Iterable[Object]) -> set[str]:
    return {version["metadata"]["resourceVersion"] for version in found}


def _of(job: str) -> str:
    return f"tfparallel.dev/job-name={job}"
