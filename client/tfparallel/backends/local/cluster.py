"""A cluster in memory: the objects of one job, and a process for each of its pods.

It acts as API server, kubelet and garbage collector for one job. It assigns uids and resource
versions, and carries out decisions in their documented order. The observation for `decide` follows
from the processes alone.
"""

import asyncio
import contextlib
import dataclasses
import datetime
import signal
import typing
import uuid

from tfparallel.backends.local import folders, launch, process, process_limits, record, watcher
from tfparallel.job_source import key_maps
from tfparallel_operator import wall_clock
from tfparallel_operator.api import job_status, names, types
from tfparallel_operator.core import decision, layout, observation, replicas
from tfparallel_operator.core.layout import Layout
from tfparallel_operator.core.pods import host_network
from tfparallel_operator.core.status import conditions
from tfparallel_trainer.contract import progress


@dataclasses.dataclass(slots=True)
class _Pod:
    """A pod that exists, and its process."""

    uid: str
    replica: replicas.Replica
    attempt: int
    replica_attempt: int
    log: typing.TextIO
    running: process.Process | None = None
    phase: observation.Phase = observation.Phase.PENDING
    exit: observation.Exit | None = None
    deleting: bool = False


def lay_out(job: types.TFParallelJob) -> Layout:
    """Build the layout of a job. Its processes have their own ports instead of ports of nodes."""
    return layout.build(job, first_port=host_network.FIRST_PORT)


class LocalCluster:
    """Holds one job and its children. Its tasks belong to the group of the caller."""

    def __init__(
        self,
        job: types.TFParallelJob,
        *,
        launcher: launch.Launcher,
        config_maps: key_maps.KeyMaps,
        run_folders: folders.Folders,
        observer: watcher.Watcher,
        clock: wall_clock.Clock,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._launcher = launcher
        self._config_maps = dict(config_maps)
        self._folders = run_folders
        self._observer = observer
        self._clock = clock
        self._tasks = tasks
        self._changed = asyncio.Event()
        self._pods: dict[str, _Pod] = {}
        self._created: set[tuple[str, str]] = set()
        self._config: observation.Config | None = None
        self._by_name = {
            replica.pod_name(job.metadata.name): replica for replica in lay_out(job).all_replicas
        }
        identity = {"uid": str(uuid.uuid4()), "generation": 1, "resource_version": "1"}
        self.job = job.model_copy(update={"metadata": job.metadata.model_copy(update=identity)})

    @property
    def settled(self) -> bool:
        """Whether no pod is ending."""
        return not any(pod.deleting for pod in self._pods.values())

    def observe(self) -> observation.Children:
        """Return the job's children as they are now."""
        return observation.Children(
            pods=tuple(_observed(name, pod) for name, pod in self._pods.items()),
            has_service=any(kind == "Service" for kind, _ in self._created),
            config=self._config,
            has_policy=any(kind == "NetworkPolicy" for kind, _ in self._created),
        )

    async def apply(self, decided: decision.Decision) -> bool:
        """Carry out a decision, and return whether it wrote anything."""
        changed = decided.status != self.job.status
        if changed:
            self._write(decided.status)
            for event in decided.events:
                record.add_event(self._folders, event, self._clock())
                self._observer.event(event)
        for deletion in decided.deletions:
            self._delete(deletion)
        for manifest in decided.creations:
            await self._create(manifest)
        if decided.deletions or decided.creations:
            self._record_pods()
        return changed or bool(decided.deletions or decided.creations)

    def report(self, received: progress.Report) -> None:
        """Write a report of the coordinator into the status."""
        now = self._clock().replace(microsecond=0)
        reports = job_status.of_report(received, now)
        placement, before = reports.placement, self.job.status.placement
        self._write(self.job.status.model_copy(update=reports._asdict()))
        if reports.progress is not None:
            self._observer.progress(reports.progress)
        else:  # a warning, which becomes a condition
            self.wake()
        if placement is not None and placement.mesh != (before and before.mesh):
            self._observer.split(placement)

    async def wait(self, until: datetime.datetime | None) -> None:
        """Wait until something has happened, or until a time."""
        seconds = None if until is None else (until - self._clock()).total_seconds()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()

    def wake(self) -> None:
        """End the wait."""
        self._changed.set()

    async def emptied(self) -> None:
        """Wait until no process is left."""
        while any(pod.running is not None for pod in self._pods.values()):
            await self.wait(None)

    def suspend(self, received: signal.Signals) -> None:
        """Record that a signal has stopped a job that has not ended: the next run resumes it."""
        if conditions.finished(self.job.status):
            return
        who = "Ctrl-C" if received is signal.SIGINT else received.name
        command = f"tfparallel run JOB.yaml --output {self._folders.root}"
        message = f"{who} stopped the run. To continue it: {command}"
        reason, kind = names.Reason.JOB_SUSPENDED, names.ConditionType.SUSPENDED
        stamp = conditions.Stamp(self._clock().replace(microsecond=0), generation=1)
        status = stamp.clear(self.job.status, conditions.TRANSIENT, reason, message)
        self._write(stamp.set(status, kind, True, reason, message))
        record.add_event(self._folders, decision.normal(reason, message), self._clock())

    def stop(self) -> None:
        """Ask every process to end, and kill it when its grace period is over."""
        for pod in self._pods.values():
            if pod.running is not None:
                pod.running.terminate()

    def kill(self) -> None:
        """End every process at once."""
        for pod in self._pods.values():
            if pod.running is not None:
                pod.running.kill()

    def _write(self, status: job_status.JobStatus) -> None:
        """Write the status, also to disk, so that it records the attempt before its pods exist."""
        version = str(int(self.job.metadata.resource_version) + 1)
        metadata = self.job.metadata.model_copy(update={"resource_version": version})
        self.job = self.job.model_copy(update={"status": status, "metadata": metadata})
        folders.write_whole(
            self._folders.status, status.model_dump_json(by_alias=True, exclude_none=True, indent=2)
        )

    async def _create(self, manifest: decision.Manifest) -> None:
        name = manifest["metadata"]["name"]
        match manifest["kind"]:
            case "Pod":
                await self._create_pod(name, manifest)
            case "ConfigMap":
                self._config_maps[name] = manifest["data"]
                content = manifest["metadata"]["annotations"][names.ANNOTATION_CONTENT]
                self._config = observation.Config(name, str(uuid.uuid4()), content)
        self._created.add((manifest["kind"], name))

    async def _create_pod(self, name: str, manifest: decision.Manifest) -> None:
        if name in self._pods:
            raise ValueError(f"pod {name} exists: its end was not waited for")
        labels = manifest["metadata"]["labels"]
        pod = _Pod(
            uid=str(uuid.uuid4()),
            replica=self._by_name[name],
            attempt=int(labels[names.LABEL_ATTEMPT]),
            replica_attempt=int(labels[names.LABEL_REPLICA_ATTEMPT]),
            log=self._open_log(name),
        )
        self._pods[name] = pod
        translation = self._launcher.translate(manifest, self._config_maps)

        def take(line: str) -> None:
            pod.log.write(f"{line}\n")
            self._observer.line(pod.replica.name, line)

        try:
            folders.empty(self._folders.failure(name))
            for folder in translation.needed:
                folder.prepare()
            translation.launch.folder.mkdir(parents=True, exist_ok=True)
            pod.running = await process.Process.start(translation.launch, take)
        except OSError as error:
            self._end(name, pod, observation.Exit(-1, "StartError", str(error), self._clock()))
            return
        pod.phase = observation.Phase.RUNNING
        self._record_change(name, pod)
        self.wake()
        self._tasks.create_task(self._follow(name, pod, pod.running))

    async def _follow(self, name: str, pod: _Pod, running: process.Process) -> None:
        code = await running.wait()
        reason = "Error" if code else "Completed"
        failure_message = self._folders.failure(name).read_text(encoding="utf-8", errors="replace")
        limit = process_limits.describe(code, len(self._by_name))
        failure_message = (
            ". ".join(filter(None, (failure_message.strip().rstrip("."), limit)))
            if limit
            else failure_message
        )
        self._end(name, pod, observation.Exit(code, reason, failure_message, self._clock()))

    def _end(self, name: str, pod: _Pod, how: observation.Exit) -> None:
        pod.log.close()
        pod.running = None
        pod.exit = how
        pod.phase = observation.Phase.FAILED if how.code else observation.Phase.SUCCEEDED
        self._record_change(name, pod)
        if pod.deleting:
            del self._pods[name]
        self._record_pods()
        self.wake()

    def _record_pods(self) -> None:
        record.write_pods(self._folders, self.observe().pods)

    def _record_change(self, name: str, pod: _Pod) -> None:
        record.add_pod_change(self._folders, _observed(name, pod), self._clock())

    def _delete(self, deletion: decision.Deletion) -> None:
        pod = self._pods.get(deletion.name)
        if pod is None or pod.uid != deletion.uid:
            return
        pod.deleting = True
        if pod.running is None:
            del self._pods[deletion.name]
        else:
            pod.running.terminate()

    def _open_log(self, name: str) -> typing.TextIO:
        """Open a pod's log. It keeps the lines of earlier attempts."""
        self._folders.logs.mkdir(parents=True, exist_ok=True)
        return self._folders.log(name).open("a", buffering=1, encoding="utf-8")


def _observed(name: str, pod: _Pod) -> observation.Pod:
    return observation.Pod(
        name=name,
        uid=pod.uid,
        replica=pod.replica,
        attempt=pod.attempt,
        replica_attempt=pod.replica_attempt,
        phase=pod.phase,
        deleting=pod.deleting,
        exit=pod.exit,
    )
