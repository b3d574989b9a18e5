"""A job in memory whose pods have agents; the test acts as the agents, too."""

import dataclasses

from testing.operator import builders
from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import decision, observation
from tfparallel_operator.core.life import in_place
from tfparallel_trainer.contract import agents


@dataclasses.dataclass
class AgentWorld(builders.World):
    """One job and its children. An agent lives in each pod that the operator builds with one."""

    reports: dict[str, in_place.AgentReport] = dataclasses.field(default_factory=dict)
    """What the operator has in memory, by the uid of a pod."""
    ends: dict[str, agents.RunEnd] = dataclasses.field(default_factory=dict)
    """The end of the latest run of each agent that waits, by the uid of its pod."""
    runs: dict[str, agents.Run] = dataclasses.field(default_factory=dict)
    """The run that an agent was last told to begin, by the uid of its pod."""

    def children(self) -> observation.Children:
        children = super().children()
        pods = in_place.observe(children.pods, self.status, self.reports)
        return dataclasses.replace(children, pods=pods)

    def end(self, name: str, code: int, **of_run: int) -> agents.Instruction:
        """Let the trainer of a pod end, and its agent ask.

        The run is the latest one of the replica, except for the given fields.
        """
        run = self.status.find_run(self.pods[name].replica.name).model_copy(update=of_run)
        self.end_silently(name, code, run)
        return self.ask(name).instruction

    def end_silently(self, name: str, code: int, run: agents.Run) -> None:
        """Let the trainer of a pod end; its agent has not asked yet."""
        self.ends[self.pods[name].uid] = agents.RunEnd(run=run, code=code)

    def ask(self, name: str, status: job_status.JobStatus | None = None) -> agents.AgentResponse:
        """Let the agent of a pod ask; the status is the job's that the operator has in memory."""
        pod = self.pods[name]
        end = self.ends[pod.uid]
        self.reports[pod.uid] = in_place.AgentReport(end, self.now)
        return in_place.answer(status or self.status, pod, end, len(self.pods))

    def obey(self, name: str, status: job_status.JobStatus | None = None) -> None:
        """Let the agent of a pod ask, and do what the answer says."""
        uid = self.pods[name].uid
        response = self.ask(name, status)
        if response.run is not None:
            self.runs[uid] = response.run
            del self.ends[uid]
        elif response.instruction is agents.Instruction.EXIT:
            self.give_up(name)

    def give_up(self, name: str) -> None:
        """Let the agent of a pod exit with the code of its trainer."""
        self.exit(name, self.ends.pop(self.pods[name].uid).code)

    def waits(self, pod: observation.Pod) -> bool:
        """Whether the trainer of a pod has ended, and its agent waits."""
        return pod.uid in self.ends and pod.phase is observation.Phase.RUNNING

    def run_of(self, pod: observation.Pod) -> agents.Run:
        """Return the run that a pod makes or made last."""
        created_for = agents.Run(attempt=pod.attempt, replica_attempt=pod.replica_attempt)
        return self.runs.get(pod.uid, created_for)

    def _create(self, created: decision.Manifest) -> None:
        super()._create(created)
        if created["kind"] == "Pod":
            metadata = created["metadata"]
            agent = metadata["annotations"].get(names.ANNOTATION_AGENT, "")
            self.update(metadata["name"], agent=agent)
