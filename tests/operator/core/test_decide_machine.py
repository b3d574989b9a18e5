"""Events in any order, an operator that dies after any write: what must hold all the same."""

from typing import Any

import hypothesis
from hypothesis import stateful
from hypothesis import strategies as st

from testing.operator import builders
from tfparallel_operator.api import names, types
from tfparallel_operator.core import conditions, indices, observation, replicas, scaling

SHAPES = st.sampled_from(
    [
        {"worker": 1},
        {"chief": 1, "worker": 2},
        {"worker": 3, "spec": {"successPolicy": "AllWorkers"}},
        {"chief": 1, "worker": 1, "trainer": True},
        {"worker": 3, "trainer": True, "spec": {"strategy": "ModelSplit", "mesh": {"stage": 3}}},
        {"chief": 1, "worker": 2, "ps": 2, "evaluator": 1},
        {"worker": 2, "run_policy": {"cleanPodPolicy": "All", "backoffLimit": 1}},
        {"worker": 2, "elastic": True},
        {"chief": 1, "worker": 2, "ps": 1, "elastic": True},
        {"worker": 2, "run_policy": {"pendingDeadlineSeconds": 30, "cleanup": [{"delete": "Job"}]}},
        {
            "chief": 1,
            "worker": 2,
            "run_policy": {
                "failurePolicy": {
                    "rules": [
                        {"roles": ["Worker"], "exitCodes": [1], "action": "Ignore"},
                        {"exitCodes": [65], "action": "RestartReplica"},
                        {"causes": ["Disruption"], "roles": ["Chief"], "action": "FailJob"},
                    ]
                }
            },
        },
        {"worker": 2, "run_policy": {"activeDeadlineSeconds": 50, "ttlSecondsAfterFinished": 20}},
    ]
)


GRACE_SECONDS = 300
"""What an evaluator has for its last evaluation."""


_JOBS: dict[str, types.TFParallelJob] = {}


def _job(key: str, **shape: Any) -> types.TFParallelJob:
    """Check a job of a shape once: its rules take longer than the decisions."""
    return _JOBS.setdefault(key, _JOBS.get(key) or builders.a_job(**shape))


class JobMachine(stateful.RuleBasedStateMachine):
    """A job, a kubelet that does what it likes, and an operator that may die at any write."""

    world: builders.World

    @stateful.initialize(shape=SHAPES)
    def begin(self, shape: dict[str, object]) -> None:
        self.world = builders.World(_job(str(shape), **shape))
        self.ended_as: str | None = None
        self.attempt = 0
        self.vanished_early = False

    @stateful.rule(writes=st.integers(0, 4))
    def operator_dies_after(self, writes: int) -> None:
        self.world.step(writes=writes)

    @stateful.rule()
    def operator_decides(self) -> None:
        self.world.step()

    @stateful.precondition(lambda self: self.world.pods)
    @stateful.rule(data=st.data())
    def pod_runs(self, data: st.DataObject) -> None:
        pod = self._pick(data)
        if pod.phase is observation.Phase.PENDING and not pod.deleting:
            self.world.update(pod.name, phase=observation.Phase.RUNNING)

    @stateful.precondition(lambda self: self.world.pods)
    @stateful.rule(data=st.data(), code=st.sampled_from([0, 1, 65, 75, 137]))
    def pod_exits(self, data: st.DataObject, code: int) -> None:
        pod = self._pick(data)
        if not pod.phase.ended:
            self.world.exit(pod.name, code)

    @stateful.precondition(lambda self: self.world.pods)
    @stateful.rule(data=st.data())
    def pod_is_evicted(self, data: st.DataObject) -> None:
        pod = self._pick(data)
        if not pod.phase.ended:
            self.world.update(pod.name, phase=observation.Phase.FAILED, disrupted=True)

    @stateful.precondition(lambda self: self.world.pods)
    @stateful.rule(data=st.data())
    def pod_vanishes(self, data: st.DataObject) -> None:
        pod = self._pick(data)
        counts = self.world.status.replicas.get(pod.replica.role.value)
        seen = counts is not None and pod.replica.index in indices.parse(counts.seen)
        if not pod.deleting and not seen:
            self.vanished_early = True
        del self.world.pods[pod.name]

    @stateful.rule()
    def deleted_pods_go(self) -> None:
        self.world.reap()

    @stateful.rule(seconds=st.integers(1, 40))
    def time_passes(self, seconds: int) -> None:
        self.world.advance(seconds)

    @stateful.rule(suspend=st.booleans())
    def person_suspends(self, suspend: bool) -> None:
        self.world.edit(suspend=suspend)

    @stateful.precondition(lambda self: replicas.elastic(self.world.job))
    @stateful.rule(workers=st.integers(1, 3))
    def person_scales(self, workers: int) -> None:
        self.world.job = scaling.with_workers(self.world.job, workers)

    @stateful.invariant()
    def an_end_is_final(self) -> None:
        status = self.world.status
        succeeded = conditions.holds(status, names.Condition.SUCCEEDED)
        failed = conditions.holds(status, names.Condition.FAILED)
        assert not (succeeded and failed)
        if self.ended_as is not None:
            assert status.state is self.ended_as
        elif conditions.finished(status):
            self.ended_as = status.state

    @stateful.invariant()
    def attempts_only_grow(self) -> None:
        assert self.world.status.attempt >= self.attempt
        self.attempt = self.world.status.attempt

    @stateful.invariant()
    def failures_stay_within_the_budget(self) -> None:
        limit = self.world.job.spec.run_policy.backoff_limit
        assert self.world.status.restarts.failure <= limit

    @stateful.invariant()
    def no_pod_is_created_twice_in_an_attempt(self) -> None:
        if not self.vanished_early:
            assert len(set(self.world.created)) == len(self.world.created)

    @stateful.invariant()
    def gangs_of_two_attempts_never_meet(self) -> None:
        servers = replicas.strategy(self.world.job) is types.Strategy.PARAMETER_SERVER
        if not servers:
            assert len({pod.attempt for pod in self.world.pods.values()}) <= 1

    @stateful.invariant()
    def counts_add_up(self) -> None:
        if conditions.finished(self.world.status):
            return
        for counts in self.world.status.replicas.values():
            parts = counts.pending + counts.running + counts.succeeded + counts.failed
            assert parts == counts.desired

    def teardown(self) -> None:
        """Whatever happened, the decisions come to rest, and rest means all is as it should be."""
        if not hasattr(self, "world"):
            return
        self.world.settle()
        self.world.advance(GRACE_SECONDS)
        self.world.settle()
        status = self.world.status
        if self.world.deleted:
            return
        if conditions.finished(status) or status.state is names.State.SUSPENDED:
            running = [pod for pod in self.world.pods.values() if not pod.phase.ended]
            assert not running
        else:
            pod_names = {r.pod_name("job") for r in replicas.expand(self.world.job)}
            done = sum(counts.succeeded for counts in status.replicas.values())
            done += sum(len(indices.parse(counts.ignored)) for counts in status.replicas.values())
            assert set(self.world.pods) <= pod_names
            assert len(self.world.pods) >= len(pod_names) - done

    def _pick(self, data: st.DataObject) -> observation.Pod:
        return self.world.pods[data.draw(st.sampled_from(sorted(self.world.pods)))]


# An example takes milliseconds, and most orders of events are rare: more of them than of others.
JobMachine.TestCase.settings = hypothesis.settings(
    max_examples=4 * hypothesis.settings().max_examples,
    stateful_step_count=40,
)
TestAnyOrder = JobMachine.TestCase
