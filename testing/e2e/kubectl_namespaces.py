"""A test's namespace, used by kubectl as a person would."""

import contextlib
import itertools
import json
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testing import waiting
from testing.cluster import handle, lifecycle
from tfparallel_operator.api import names

Object = dict[str, Any]

POLL_SECONDS = 0.5
JOB_SECONDS = 400.0
"""Seconds that a short job may take on two busy cores."""

GONE_SECONDS = 90.0
CHILDREN = "pods,services,configmaps,networkpolicies"
_NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class KubectlNamespace:
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
        body: Object = json.loads(self.kubectl("get", "tfpj", name, "--output=json"))
        return body

    def pods(self, job: str) -> dict[str, Object]:
        """The pods of a job by name."""
        shown = ("--output=json", "--show-managed-fields")
        listing = self.kubectl("get", "pods", f"--selector={_selector_of(job)}", *shown)
        return {pod["metadata"]["name"]: pod for pod in json.loads(listing)["items"]}

    def wait(
        self, name: str, reached: Callable[[Object], bool], limit: float = JOB_SECONDS
    ) -> Object:
        """Wait until the job's status satisfies `reached`, or raise a full description."""
        try:
            return waiting.until(
                lambda: self.job(name),
                name,
                limit,
                when=lambda job: reached(job.get("status") or {}),
                poll=POLL_SECONDS,
            )
        except waiting.TimedOutError:
            raise AssertionError(f"{name} did not get there:\n{self.describe(name)}") from None

    def wait_ended(self, name: str, limit: float = JOB_SECONDS) -> Object:
        """The job, once it has succeeded or failed."""
        return self.wait(name, lambda s: s.get("state") in {"Succeeded", "Failed"}, limit)

    def lose(self, pod: str) -> None:
        """Delete a pod as the loss of its node does: without a chance to end in order."""
        self.kubectl("delete", "pod", pod, "--grace-period=0", "--force")

    def evict(self, pod: str) -> None:
        """Evict a pod, as the drain of its node does."""
        document = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": self.name},
        }
        path = f"/api/v1/namespaces/{self.name}/pods/{pod}/eviction"
        self.kubectl("create", f"--raw={path}", "--filename=-", input=json.dumps(document))

    def crash(self, pod: str) -> None:
        """Kill the process of a pod from outside; the pod stays."""
        body = json.loads(self.kubectl("get", "pod", pod, "--output=json"))
        [container] = body["status"]["containerStatuses"]
        identity = container["containerID"].removeprefix("containerd://")
        kill = ("ctr", "--namespace=k8s.io", "tasks", "kill", "--signal=SIGKILL", identity)
        subprocess.run(self.cluster.inside(*kill), check=True, capture_output=True)

    def signal_trainer(self, pod: str, number: int) -> float:
        """Send a signal to the trainer in a pod, a child of its agent; return when, since 1970."""
        children = "open('/proc/1/task/1/children').read().split()"
        program = (
            f"import os, time; now = time.time(); os.kill(int({children}[0]), {number}); print(now)"
        )
        return float(self.kubectl("exec", pod, "--", "python", "-c", program))

    def wait_gone(self, job: str) -> None:
        """Wait until nothing of a deleted job is left."""
        waiting.until(
            lambda: self.children(job),
            f"the end of all objects of {job}",
            GONE_SECONDS,
            when=lambda left: not left,
            poll=POLL_SECONDS,
        )

    def children(self, job: str) -> str:
        """The names of all objects of a job, with their kinds."""
        return self.kubectl(
            "get", CHILDREN, f"--selector={_selector_of(job)}", "--output=name"
        ).strip()

    def describe(self, job: str) -> str:
        """Everything that a person would examine if a job misbehaves."""
        parts = [json.dumps(self.job(job).get("status"), indent=1)]
        parts.append(self.kubectl("get", "pods", "--output=wide"))
        parts.append(self.kubectl("get", "events", "--sort-by=.lastTimestamp"))
        for pod in self.pods(job):
            with contextlib.suppress(Exception):
                parts.append(f"--- {pod}\n{self.kubectl('logs', pod, '--tail=40')}")
        return "\n".join(parts)

    @contextlib.contextmanager
    def following(self, pod: str, file: Path) -> Iterator["Writer"]:
        """Write the log of a pod to the file, to the end of the pod, which may be deleted."""
        with self._writing(file, "logs", pod, "--follow") as logs:
            # While a container is created its log cannot be followed: kubectl says so and ends.
            waiting.until(
                lambda: logs.complaints() if logs.runs() else logs.restart(),
                f"the log of {pod}",
                GONE_SECONDS,
                when=lambda _: bool(file.stat().st_size),
                poll=POLL_SECONDS,
            )
            yield logs
            waiting.until(logs.runs, f"the end of {pod}", GONE_SECONDS, when=lambda runs: not runs)

    @contextlib.contextmanager
    def watching(self, file: Path) -> Iterator[None]:
        """Write every version of every job to the file, which `versions` reads, in the body.

        Raises:
            AssertionError: the watch ended before the last version; with what kubectl said.
        """
        path = f"/apis/{names.API_VERSION}/namespaces/{self.name}/{names.PLURAL}"
        # A watch from a version on tells all that comes after it, however late it connects.
        begin = self._raw(path)["metadata"]["resourceVersion"]
        with self._writing(file, "get", f"--raw={path}?watch=1&resourceVersion={begin}") as watch:
            yield
            last = _numbers(self._raw(path)["items"])

            def end() -> str:
                return "" if watch.runs() else f"the watch has ended: {watch.complaints()}"

            waiting.until(
                lambda: _numbers(versions(file)),
                "the last versions",
                GONE_SECONDS,
                when=last.issubset,
                in_vain=end,
            )

    def _raw(self, path: str) -> Object:
        """What the API server answers."""
        answer: Object = json.loads(self.kubectl("get", f"--raw={path}"))
        return answer

    @contextlib.contextmanager
    def _writing(self, file: Path, *arguments: str) -> Iterator["Writer"]:
        """Meanwhile let kubectl write what it prints to the file."""
        command = (
            str(self.cluster.kubectl),
            f"--kubeconfig={self.cluster.kubeconfig}",
            f"--namespace={self.name}",
            *arguments,
        )
        writer = Writer(command, file)
        try:
            yield writer
        finally:
            writer.stop()


Make = Callable[[str], KubectlNamespace]


@contextlib.contextmanager
def maker(cluster: handle.Cluster) -> Iterator[Make]:
    """Makes namespaces that enforce the level restricted; they end with the cluster or here."""
    created: list[str] = []

    def make(purpose: str) -> KubectlNamespace:
        plain = re.sub(r"[^a-z0-9]+", "-", purpose.lower()).strip("-")
        name = f"{plain[:40]}-{next(_NUMBERS)}"
        cluster.create_namespace(name)
        level = "pod-security.kubernetes.io/enforce=restricted"
        cluster.run_kubectl("label", "namespace", name, level)
        created.append(name)
        return KubectlNamespace(cluster, name)

    yield make
    if created and lifecycle.outlives_session(cluster):
        cluster.run_kubectl("delete", "namespace", *created, "--timeout=600s", limit=660.0)


class Writer:
    """A program whose output goes to a file, and whose errors go to another."""

    def __init__(self, command: Sequence[str], file: Path) -> None:
        self._command = command
        self._file = file
        self._complaints = file.with_suffix(".complaints")
        self._earlier = ""
        self._running = self._start()

    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._running.poll() is None

    def complaints(self) -> str:
        """Its standard error; until it writes any, that of the previous start."""
        return self._complaints.read_text(encoding="utf-8", errors="replace") or self._earlier

    def restart(self) -> str:
        """Start it again, with empty files; its complaints until now."""
        self._earlier = self.complaints()
        self._running = self._start()
        return self._earlier

    def stop(self) -> None:
        """End it."""
        self._running.terminate()
        self._running.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._file.open("wb") as output, self._complaints.open("wb") as errors:
            return subprocess.Popen(self._command, stdout=output, stderr=errors)


def versions(file: Path) -> list[Object]:
    """The versions of jobs that `watching` has written so far."""
    whole_lines = file.read_bytes().split(b"\n")[:-1]
    return [json.loads(line)["object"] for line in whole_lines]


def _numbers(versions: Iterable[Object]) -> set[str]:
    return {version["metadata"]["resourceVersion"] for version in versions}


def _selector_of(job: str) -> str:
    return f"tfparallel.dev/job-name={job}"
