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
from collections.abc import Mapping

from tfparallel.backends.local import (
    containers,
    folders,
    launch,
    process,
    process_limits,
    record,
    watcher,
)
from tfparallel.job_source import key_maps
from tfparallel_operator import wall_clock
from tfparallel_operator.api import job_status, names, types
from tfparallel_operator.core import decision, layout, observation, replicas
from tfparallel_operator.core.layout import Layout
from tfparallel_operator.core.pods import host_network
from tfparallel_operator.core.status import conditions, goodput
from tfparallel_trainer.contract import agents, environment, progress

_NOT_BEGUN = 128 + signal.SIGTERM
"""Exit code of a run that was ended before it began."""


@dataclasses.dataclass(slots=True)
class _Pod:
    """A pod that exists."""

    uid: str
    replica: replicas.Replica
    run: agents.Run
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
        self._containers: dict[str, containers.Container] = {}
        """The processes that live, by the names of their pods."""
        self._agents_url = ""
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

    def listen(self, agents_url: str) -> None:
        """Let agents ask at an address, to which they add the names of their pods."""
        self._agents_url = agents_url

    def respond(self, name: str, end: agents.RunEnd) -> agents.AgentResponse:
        """Record the end of a run in a pod, and answer its agent."""
        container = self._containers.get(name)
        if container is None or not container.has_agent:
            return agents.AgentResponse(instruction=agents.Instruction.EXIT)
        was_running = container.is_running
        answer = container.respond(end)
        pod = self._pods.get(name)
        if was_running and end.run == container.run and pod is not None:
            self._end(name, pod, self._describe(name, end.code))
        return answer

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

    def trainer_ids(self) -> Mapping[str, int]:
        """Return the process ids of the trainers that run now, by their replicas."""
        ids = {
            self._by_name[pod].name: container.trainer_id
            for pod, container in self._containers.items()
        }
        return {replica: number for replica, number in ids.items() if number is not None}

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
        while self._containers:
            await self.wait(None)

    def suspend(self, received: signal.Signals) -> None:
        """Record that a signal has stopped a job that has not ended: the next run resumes it."""
        if conditions.finished(self.job.status):
            return
        who = "Ctrl-C" if received is signal.SIGINT else received.name
        command = f"tfparallel run JOB.yaml --output {self._folders.root}"
        message = f"{who} stopped the run. To continue it: {command}"
        reason, kind = names.Reason.JOB_SUSPENDED, names.ConditionType.SUSPENDED
        now = self._clock().replace(microsecond=0)
        stamp = conditions.Stamp(now, generation=1)
        status = stamp.clear(self.job.status, conditions.TRANSIENT, reason, message)
        status = goodput.advance(
            self.job.status,
            stamp.set(status, kind, True, reason, message),
            self.observe().pods,
            observation.parse_time(self.job.metadata.creation_timestamp),
            now,
            reports_steps=self.job.spec.trainer is not None,
        )
        self._write(status)
        record.add_event(self._folders, decision.normal(reason, message), self._clock())

    def stop(self) -> None:
        """Ask every process to end, and kill it when its grace period is over."""
        for container in self._containers.values():
            container.running.terminate()

    def kill(self) -> None:
        """End every process at once."""
        for container in self._containers.values():
            container.running.kill()

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
        run = agents.Run(
            attempt=int(labels[names.LABEL_ATTEMPT]),
            replica_attempt=int(labels[names.LABEL_REPLICA_ATTEMPT]),
        )
        pod = _Pod(uid=str(uuid.uuid4()), replica=self._by_name[name], run=run)
        self._pods[name] = pod
        translation = self._launcher.translate(manifest, self._config_maps)
        try:
            folders.empty(self._folders.failure(name))
            for folder in translation.needed:
                folder.prepare()
            translation.launch.folder.mkdir(parents=True, exist_ok=True)
            await self._run(name, pod, translation)
        except OSError as error:
            self._end(name, pod, observation.Exit(-1, "StartError", str(error), self._clock()))
            return
        pod.phase = observation.Phase.RUNNING
        self._record_change(name, pod)
        self.wake()

    async def _run(self, name: str, pod: _Pod, translation: launch.Translation) -> None:
        """Give the pod's run to an agent that waits for one, or start a process for it."""
        started = self._with_agent(name, pod, translation)
        earlier = self._containers.pop(name, None)
        if earlier is not None:
            if earlier.fits(started):
                earlier.next_run = pod.run
                self._containers[name] = earlier
                return
            earlier.running.kill()
        log = self._open_log(name)

        def take(line: str) -> None:
            log.write(f"{line}\n")
            self._observer.line(pod.replica.name, line)

        try:
            running = await process.Process.start(started, take)
        except OSError:
            log.close()
            raise
        container = containers.Container(running, started, log, pod.run, translation.has_agent)
        self._containers[name] = container
        self._tasks.create_task(self._follow(name, container))

    def _with_agent(self, name: str, pod: _Pod, translation: launch.Translation) -> process.Launch:
        """Return the launch, with the address at which an agent asks."""
        if not translation.has_agent:
            return translation.launch
        variables = {
            environment.AGENT_URL: f"{self._agents_url}/{name}",
            environment.REPLICA_ATTEMPT: str(pod.run.replica_attempt),
        }
        merged = {**translation.launch.environment, **variables}
        return dataclasses.replace(translation.launch, environment=merged)

    async def _follow(self, name: str, container: containers.Container) -> None:
        code = await container.running.wait()
        container.log.close()
        if self._containers.get(name) is not container:
            return
        del self._containers[name]
        pod = self._pods.get(name)
        if pod is not None and not pod.phase.ended:
            self._end(name, pod, self._describe(name, code))
        self.wake()

    def _describe(self, name: str, code: int) -> observation.Exit:
        """Return how a run has ended, with the sentence that it left about that."""
        message = self._folders.failure(name).read_text(encoding="utf-8", errors="replace")
        limit = process_limits.describe(code, len(self._by_name))
        if limit:
            message = ". ".join(filter(None, (message.strip().rstrip("."), limit)))
        reason = "Error" if code else "Completed"
        return observation.Exit(code, reason, message, self._clock())

    def _end(self, name: str, pod: _Pod, how: observation.Exit) -> None:
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
        container = self._containers.get(deletion.name)
        if container is not None:
            container.end_run()
        if pod.phase.ended or container is None:
            del self._pods[deletion.name]
        elif not container.is_running:  # Its agent has not begun the run.
            self._end(deletion.name, pod, self._describe(deletion.name, _NOT_BEGUN))

    def _open_log(self, name: str) -> typing.TextIO:
        """Open a pod's log. It keeps the lines of earlier attempts."""
        self._folders.logs.mkdir(parents=True, exist_ok=True)
        return self._folders.log(name).open("a", buffering=1, encoding="utf-8")


def _observed(name: str, pod: _Pod) -> observation.Pod:
    return observation.Pod(
        name=name,
        uid=pod.uid,
        replica=pod.replica,
        attempt=pod.run.attempt,
        replica_attempt=pod.run.replica_attempt,
        phase=pod.phase,
        deleting=pod.deleting,
        exit=pod.exit,
    )
