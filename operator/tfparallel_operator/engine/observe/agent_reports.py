"""What the agents of pods have said, in memory: a restarted operator hears it again in seconds.

With two operators, a question reaches one of them by chance. An agent asks again and again, so the
one that decides hears it, too.
"""

import collections
import datetime

from tfparallel_operator.api import gate
from tfparallel_operator.core import observation
from tfparallel_operator.core.life import in_place
from tfparallel_trainer.contract import agents

MOST = 20_000
"""Maximum number of reports that are kept. The oldest are forgotten first, and are sent again."""


class AgentReports:
    """The latest report of each agent, by the uid of its pod."""

    def __init__(self, most: int = MOST) -> None:
        self._reports: collections.OrderedDict[str, in_place.AgentReport] = (
            collections.OrderedDict()
        )
        self._most = most

    def record(self, pod: observation.Pod, end: agents.RunEnd, now: datetime.datetime) -> bool:
        """Record what the agent of a pod says, with a message of bounded length.

        Return whether it is new.
        """
        end = end.model_copy(update={"message": gate.cut(end.message)})
        earlier = self._reports.get(pod.uid)
        if earlier is not None and earlier.end == end:
            self._reports.move_to_end(pod.uid)
            return False
        self._reports[pod.uid] = in_place.AgentReport(end, now)
        self._reports.move_to_end(pod.uid)
        while len(self._reports) > self._most:
            self._reports.popitem(last=False)
        return True

    def of_pods(self, pods: tuple[observation.Pod, ...]) -> dict[str, in_place.AgentReport]:
        """Return the reports of a job's pods, by uid."""
        if not self._reports:
            return {}
        return {pod.uid: self._reports[pod.uid] for pod in pods if pod.uid in self._reports}
