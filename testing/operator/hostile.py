"""Hostile objects: what a tenant could store or send, at the bounds of what is allowed and beyond.

The same `Random` gives the same objects, so that a fault can be repeated by its seed. All of it is
harmless to the API server and to the parsers of others: long means some hundred kB, deep some
levels more than the operator reads.
"""

import copy
import random
from collections.abc import Callable
from typing import Any

from testing.operator import generated_jobs, objects
from tfparallel_operator.api import names

Body = dict[str, Any]

DEEP = 80
"""Levels of a nested value: more than the operator reads."""

LONG = 300_000
"""Characters of a long text: more than the operator keeps."""

TEXTS = (
    *("", " ", "-", "a", ".", "..", "../..", "a/b", "%2f", "null", "true", "~", "é", "٣", "\u2028"),
    *(
        "\x1b[31mred\x1b[0m",
        "\x00",
        "line\nline",
        "\t",
        "\u202eabc",
        "\ufeff",
        "😀",
        "{{}}",
        "${X}",
    ),
    *(
        "$(TFPARALLEL_ATTEMPT)",
        "$(",
        "$$(A)",
        "1Gi",
        "1e3",
        "-1",
        "0x10",
        "1e400",
        "NaN",
        "Infinity",
    ),
    *("9" * 20, "9" * 400, "1." + "0" * 400, "9" * 400 + "x", "a" * 63, "a" * 64, "a" * 253, "A b"),
    *("2026-11-27T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "yesterday"),
)
NUMBERS = (0, 1, -1, 2, 3, 255, 256, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63))
FRACTIONS = (0.5, -0.0, 1e17, 1e308, 1e-308, 1.5)
EXIT_CODES = (0, 1, 2, 42, 76, 77, 79, 126, 127, 128, 137, 139, 143, 255, 256, -1, 2**31 - 1)
REASONS = (
    *(
        "Completed",
        "Error",
        "OOMKilled",
        "Evicted",
        "ContainerStatusUnknown",
        "Unknown",
        "Preempting",
    ),
    *("NodeShutdown", "Terminated", "NodeLost", "DeadlineExceeded", "ImagePullBackOff", "OutOfcpu"),
    *(
        "UnexpectedAdmissionError",
        "ContainerCannotRun",
        "StartError",
        "CrashLoopBackOff",
        "NodeAffinity",
    ),
)
FIELDS = (
    *("command", "args", "env", "envFrom", "image", "name", "ports", "resources", "restartPolicy"),
    *(
        "securityContext",
        "volumeMounts",
        "livenessProbe",
        "lifecycle",
        "restartPolicyRules",
        "stdin",
    ),
)
POD_FIELDS = (
    *(
        "containers",
        "initContainers",
        "volumes",
        "nodeSelector",
        "tolerations",
        "affinity",
        "hostNetwork",
    ),
    *(
        "schedulerName",
        "serviceAccountName",
        "securityContext",
        "priorityClassName",
        "resourceClaims",
    ),
    *(
        "terminationGracePeriodSeconds",
        "activeDeadlineSeconds",
        "imagePullSecrets",
        "overhead",
        "os",
    ),
)
RESOURCES = ("cpu", "memory", "nvidia.com/gpu", "nvidia.com/gpu.shared", "hugepages-2Mi", "a b", "")


class Generator:
    """Makes hostile objects from a source of random numbers."""

    def __init__(self, source: random.Random) -> None:
        self._random = source

    def job(self, name: str) -> Body:
        """Return a job: most of them are stored, some the API server refuses."""
        seed = copy.deepcopy(self._pick(generated_jobs.SEEDS))
        job = {**seed, "metadata": {**seed["metadata"], "name": name}}
        job["metadata"].pop("generateName", None)
        roles = job["spec"]["tfReplicaSpecs"]
        for role in roles:
            if isinstance(roles[role], dict) and self._often():
                roles[role]["template"] = self.template()
        for _ in range(self._random.randrange(3)):
            self._pick(_CHANGES)(self, job)
        return job

    def complete(self, job: Body, name: str) -> Body:
        """Give a job of Hypothesis hostile templates, and a name where it has that of a seed."""
        spec, metadata = job.get("spec"), job.get("metadata")
        roles = spec.get("tfReplicaSpecs") if isinstance(spec, dict) else None
        for role in roles.values() if isinstance(roles, dict) else ():
            if isinstance(role, dict):
                role["template"] = self.template()
        seeds = [seed["metadata"].get("name") for seed in generated_jobs.SEEDS]
        if isinstance(metadata, dict) and metadata.get("name") in seeds:
            metadata["name"] = name
        return job

    def change(self) -> Body:
        """Return a merge patch of a job."""
        job = self.job("any")
        kept = self._random.sample(sorted(job["spec"]), k=min(2, len(job["spec"])))
        return {"metadata": self.metadata(), "spec": {key: job["spec"][key] for key in kept}}

    def metadata(self) -> Body:
        """Return labels and annotations; ours among them, and others' keys with odd values."""
        keys = (names.LABEL_MANAGED_BY, names.LABEL_JOB, names.LABEL_ATTEMPT, names.LABEL_QUEUE)
        labels = {self._pick((*keys, "team")): self._pick(("", "a", "0", "9" * 40, "A.b_c", "-"))}
        return {
            "labels": labels,
            "annotations": {names.ANNOTATION_CONTENT: self.text(), "a": self.text()},
        }

    def template(self) -> Body:
        """Return a pod template, into which the API server does not look."""
        if self._seldom():
            return {"spec": self.value()} if self._often() else {self.text(): self.value()}
        spec = objects.template()["spec"]
        container = spec["containers"][0]
        for _ in range(self._random.randrange(4)):
            container[self._pick(FIELDS)] = self.value()
        for _ in range(self._random.randrange(3)):
            spec[self._pick(POD_FIELDS)] = self.value()
        if self._often():
            container["resources"] = {"limits": self._quantities(), "requests": self._quantities()}
        if self._often():
            container["env"] = [{"name": self.text(), "value": self.text()} for _ in range(3)]
        if self._seldom():
            spec["containers"] = [container] * self._pick((0, 1, 2, 300))
        return {"metadata": self.metadata() if self._often() else self.value(), "spec": spec}

    def pod(self, name: str, job: str, uid: str) -> Body:
        """Return a pod that claims to belong to a job."""
        labels = {
            **objects.labels(self._pick(("chief", "worker", "ps", "evaluator", "king"))),
            names.LABEL_INDEX: self._pick(("0", "1", "7", "00", "9" * 30, "x", "")),
            names.LABEL_ATTEMPT: self._pick(("0", "1", "2", "9" * 30, "x")),
            names.LABEL_REPLICA_ATTEMPT: self._pick(("0", "1", "9" * 30, "")),
            names.LABEL_JOB: job,
        }
        metadata: Body = {"name": name, "labels": labels, "annotations": {"a": self.text()}}
        metadata["ownerReferences"] = [{**objects.owner(job, uid), "controller": self._often()}]
        if self._seldom():
            metadata["finalizers"] = ["example.com/flush"]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, **objects.template()}

    def pod_status(self) -> Body:
        """Return a status of a pod as no kubelet writes it."""
        status: Body = {
            "phase": self._pick(("Pending", "Running", "Succeeded", "Failed", "Unknown")),
            "reason": self._pick((*REASONS, self.text())),
            "message": self.text(),
        }
        names_of_containers = self._random.choices((names.CONTAINER, "sidecar"), k=2)
        status["containerStatuses"] = [self._container(name) for name in set(names_of_containers)]
        if self._seldom():
            status["initContainerStatuses"] = [self._container(names.SOURCE_CONTAINER)]
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": self.text(),
            "message": self.text(),
        }
        if self._seldom():
            status["conditions"] = [condition]
        return status

    def child(self, kind: str, name: str, job: str, uid: str) -> Body:
        """Return a ConfigMap or Service that claims to belong to a job."""
        metadata = {
            "name": name,
            "labels": objects.labels(),
            "annotations": self.metadata()["annotations"],
        }
        metadata["ownerReferences"] = [objects.owner(job, uid)]
        body: Body = {"apiVersion": "v1", "kind": kind, "metadata": metadata}
        if kind == "ConfigMap":
            return {**body, "data": {"cluster.json": self.text(), "spec.json": self.text()}}
        return {**body, "spec": {"clusterIP": "None", "ports": [{"port": 1}]}}

    def report(self) -> Any:
        """Return what a job's own code could send as its progress."""
        report: Body = {"step": self._pick((*NUMBERS, 10**30, "1", None, 1.5))}
        fields: dict[str, Callable[[], Any]] = {
            "totalSteps": self.number,
            "epoch": self.number,
            "percent": lambda: self._pick((0, 50, 100, 101, -1, "50")),
            "eta": self.text,
            "metrics": lambda: {self.text(): self._pick((self.text(), self.number()))},
            "placement": self.value,
            self.text(): self.value,
        }
        for name in self._random.sample(sorted(fields), k=3):
            report[name] = fields[name]()
        return report if self._often() else self.value()

    def value(self, depth: int = 3) -> Any:
        """Return any JSON."""
        if self._random.random() < 0.02:
            return self._nested(DEEP)
        if depth and self._often():
            children = [self.value(depth - 1) for _ in range(self._random.randrange(3))]
            if self._often():
                return children
            return {self.text(long=False): child for child in children}
        return self._pick((None, True, False, self.text(), self.number(), self._pick(FRACTIONS)))

    def text(self, *, long: bool = True) -> str:
        """Return a text, now and then a long one."""
        if long and self._random.random() < 0.003:
            return str(self._pick(("a", "9", "é", " "))) * LONG
        return str(self._pick(TEXTS))

    def number(self) -> int:
        """Return a whole number that the API server can carry."""
        return int(self._pick(NUMBERS))

    def _nested(self, depth: int) -> Any:
        value: Any = self.text(long=False)
        for _ in range(depth):
            value = [value] if self._often() else {"a": value}
        return value

    def _quantities(self) -> Body:
        return {self._pick(RESOURCES): self._pick((self.text(), self.number(), "500m", "4Gi"))}

    def _container(self, name: str) -> Body:
        ended = {
            "exitCode": self._pick(EXIT_CODES),
            "reason": self._pick((*REASONS, self.text())),
            "message": self.text(),
            "startedAt": self._pick((None, *TEXTS[-4:-1])),
            "finishedAt": self._pick((None, *TEXTS[-4:-1])),
            "signal": self.number(),
        }
        reason = {"reason": self._pick((*REASONS, self.text())), "message": self.text()}
        state = self._pick(({"terminated": ended}, {"waiting": reason}, {"running": {}}, {}))
        return {
            "name": name,
            "state": state,
            "lastState": {"terminated": ended},
            "restartCount": self._pick((0, 1, 2**31 - 1)),
            "ready": False,
            "image": "x",
            "imageID": "x",
        }

    def _set_metadata(self, job: Body) -> None:
        job["metadata"] |= self.metadata()

    def _set_field(self, job: Body) -> None:
        node: Any = job["spec"]
        while True:
            key = self._pick(sorted(node))
            if not isinstance(node[key], dict) or not node[key] or self._seldom():
                node[key] = self.value()
                return
            node = node[key]

    def _set_replicas(self, job: Body) -> None:
        replicas = self._pick((0, 1, 20, 5001, *NUMBERS[7:]))
        job["spec"]["tfReplicaSpecs"] = {"Worker": {"replicas": replicas}}

    def _pick(self, options: Any) -> Any:
        return self._random.choice(options)

    def _often(self) -> bool:
        return self._random.random() < 0.7

    def _seldom(self) -> bool:
        return self._random.random() < 0.15


_CHANGES = (Generator._set_metadata, Generator._set_field, Generator._set_replicas)
