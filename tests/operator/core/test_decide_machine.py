"""Events in any order, edits of any field, an operator that dies after any write or is of another
version: what must hold all the same.
"""

import dataclasses
import datetime
from typing import Any

import hypothesis
from hypothesis import stateful
from hypothesis import strategies as st

from testing.operator import builders, edits, goodput_reports, queues, troubled_world
from tfparallel_operator.api import names, types
from tfparallel_operator.core import installation, layout, observation, pod_ends, view
from tfparallel_operator.core.life import restarts
from tfparallel_operator.core.status import conditions, goodput, replica_records

SETTINGS = dataclasses.replace(builders.SETTINGS, queues=True, gangs=installation.Gangs())
RULES = [
    {"roles": ["Worker"], "exitCodes": [1], "action": "Ignore"},
    {"exitCodes": [65], "action": "RestartReplica"},
    {"causes": ["Disruption"], "roles": ["Chief"], "action": "FailJob"},
]
CLEANUP = [{"delete": "Job"}]
GANG = {"scheduling": {"gang": "Coscheduling"}}
FIXED_GANG = {"scheduling": {"gang": "Kubernetes"}}
MEMORY = {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}
CONTAINER = {"name": names.CONTAINER, "image": "i", "resources": MEMORY}
GROWING = {
    "tfReplicaSpecs": {
        "Worker": {"replicas": 2, "template": {"spec": {"containers": [CONTAINER]}}}
    },
    "runPolicy": {"outOfMemory": {"maxMemory": "4Gi"}},
}
SHAPES: tuple[dict[str, Any], ...] = (
    {"worker": 1},
    {"chief": 1, "worker": 2},
    {"worker": 3, "spec": {"successPolicy": "AllWorkers"}},
    {"worker": 2, "evaluator": 1, "spec": GANG},
    {"chief": 1, "worker": 1, "trainer": True},
    {"worker": 3, "trainer": True, "spec": {"strategy": "ModelSplit", "mesh": {"stage": 3}}},
    {"worker": 2, "trainer": True, "elastic": True, "queue": "research"},
    {"chief": 1, "worker": 2, "ps": 2, "evaluator": 1},
    {"worker": 2, "run_policy": {"cleanPodPolicy": "All", "backoffLimit": 1}},
    {"worker": 2, "evaluator": 1, "elastic": True},
    {"chief": 1, "worker": 2, "ps": 1, "elastic": True},
    {"worker": 2, "evaluator": 1, "elastic": True, "spec": FIXED_GANG},
    {"chief": 1, "worker": 2, "ps": 1, "spec": FIXED_GANG},
    {"worker": 2, "evaluator": 1, "queue": "research"},
    {"chief": 1, "worker": 2, "ps": 1, "elastic": True, "queue": "research"},
    {"worker": 2, "elastic": True, "queue": "research", "spec": GANG},
    {"queue": "research", "spec": GROWING},
    {"worker": 2, "run_policy": {"pendingDeadlineSeconds": 30, "cleanup": CLEANUP}},
    {"chief": 1, "worker": 2, "run_policy": {"failurePolicy": {"rules": RULES}}},
    {"worker": 2, "run_policy": {"activeDeadlineSeconds": 50, "ttlSecondsAfterFinished": 20}},
)
RENAMED = {"spec": {"containers": [{"name": "main", "image": "i"}]}}
TEMPLATE: edits.Path = ("tfReplicaSpecs", "<role>", "template")
EDITS: list[tuple[edits.Path, Any]] = [
    *((path, example.value) for path, several in edits.EXAMPLES.items() for example in several),
    (("runPolicy", "backoffLimit"), 2),
    (("runPolicy", "activeDeadlineSeconds"), 60),
    (("runPolicy", "failurePolicy"), {"rules": RULES}),
    *[(TEMPLATE, RENAMED)] * 3,
]
"""Valid for some jobs and invalid for others, by the rules of the API server and of `load`."""
REFUSALS = st.sampled_from(
    [
        observation.Refusal(names.Reason.QUOTA_EXCEEDED, "used up", final=False),
        observation.Refusal(names.Reason.INVALID_TEMPLATE, "no such field"),
    ]
)
NEVER_RAN = (names.Reason.INVALID_SPEC, names.Reason.INVALID_TEMPLATE)
"""Failures that a corrected spec takes back."""
GRACE_SECONDS = 300
"""What an evaluator has for its last evaluation."""


class JobMachine(stateful.RuleBasedStateMachine):
    """A job; a kubelet, a Kueue, nodes and people that do what they like; an operator."""

    world: troubled_world.TroubledWorld

    @stateful.initialize(shape=st.sampled_from(SHAPES))
    def create_job(self, shape: dict[str, Any]) -> None:
        manifest = builders.a_manifest(**shape)
        self.world = troubled_world.TroubledWorld(
            edits.parse(manifest),
            settings=SETTINGS,
            flavors=queues.FLAVORS,
            manifest=manifest,
        )
        self.before = self.world.status
        self.statuses = [self.world.status]
        self.ended_as: str | None = None
        self.limit = self.world.job.spec.run_policy.backoff_limit
        self.spent: int | None = None
        self.ports: set[int] = set()
        self.vanished_early = False
        self.began_unrecorded = False
        self.newer = False
        self.born: datetime.datetime | None = None
        self.seconds: dict[str, int] = {}

    @stateful.rule(writes=st.integers(0, 4))
    def operator_dies_after(self, writes: int) -> None:
        self.world.step(writes=writes)

    @stateful.rule()
    def operator_decides(self) -> None:
        self.world.step()

    @stateful.rule()
    def older_operator_decides(self) -> None:
        self.world.step_of_older_operator()

    @stateful.rule()
    def newer_operator_decides(self) -> None:
        self.world.write_of_newer_operator()
        self.newer = True

    @stateful.precondition(lambda self: self.world.pods)
    @stateful.rule(data=st.data())
    def pod_runs(self, data: st.DataObject) -> None:
        pod = self._pick(data)
        if pod.phase is observation.Phase.PENDING and not pod.deleting:
            self.world.update(pod.name, phase=observation.Phase.RUNNING)

    @stateful.rule()
    def all_pods_run(self) -> None:
        self.world.run()

    @stateful.precondition(lambda self: self.world.pods)
    @stateful.rule(data=st.data(), code=st.sampled_from([0, 1, 65, 71, 75, 137]))
    def pod_exits(self, data: st.DataObject, code: int) -> None:
        pod = self._pick(data)
        if not pod.phase.ended and pod.uid not in self.world.unreachable:
            self._place(pod)
            if self.world.waits(pod):  # No trainer runs, so its container ends by force.
                code = 137
            self.world.exit(pod.name, code)
            if code == 137 and data.draw(st.booleans()):
                killed = dataclasses.replace(builders.an_exit(code), reason=pod_ends.OOM_KILLED)
                self.world.update(pod.name, exit=killed)

    @stateful.precondition(lambda self: self.world.pods)
    @stateful.rule(data=st.data())
    def pod_is_evicted(self, data: st.DataObject) -> None:
        pod = self._pick(data)
        if not pod.phase.ended:
            self._place(pod)
            self.world.update(pod.name, phase=observation.Phase.FAILED, disrupted=True)
            self._take(pod)

    @stateful.precondition(lambda self: self.world.pods)
    @stateful.rule(data=st.data(), code=st.sampled_from([71, 75, 76, 137]))
    def trainer_ends(self, data: st.DataObject, code: int) -> None:
        pod = self._pick(data)
        runs = pod.phase is observation.Phase.RUNNING and not self.world.waits(pod)
        if pod.agent and runs and pod.uid not in self.world.unreachable:
            self._place(pod)
            self.world.end_silently(pod.name, code, self.world.run_of(pod))
            if code == 76:
                self._take(pod)

    @stateful.precondition(lambda self: self._waiting())
    @stateful.rule(data=st.data())
    def agent_asks_an_operator_with_an_old_status(self, data: st.DataObject) -> None:
        pod = data.draw(st.sampled_from(self._waiting()))
        self.world.obey(pod.name, data.draw(st.sampled_from(self.statuses)))

    @stateful.rule()
    def all_agents_ask(self) -> None:
        for pod in self._waiting():
            self.world.obey(pod.name)

    @stateful.precondition(lambda self: self._waiting())
    @stateful.rule(data=st.data())
    def agent_gives_up(self, data: st.DataObject) -> None:
        self.world.give_up(data.draw(st.sampled_from(self._waiting())).name)

    @stateful.rule()
    def operator_forgets_the_agents(self) -> None:
        self.world.reports.clear()

    @stateful.precondition(lambda self: self.world.pods)
    @stateful.rule(data=st.data(), code=st.sampled_from([1, 75, 137]))
    def restart_meets_an_eviction(self, data: st.DataObject, code: int) -> None:
        self.world.run()
        self.pod_exits(data, code)
        self.world.step()
        if self.world.pods:
            self.pod_is_evicted(data)

    @stateful.precondition(lambda self: self.world.pods)
    @stateful.rule(data=st.data())
    def pod_vanishes(self, data: st.DataObject) -> None:
        pod = self._pick(data)
        carried = replica_records.read(self.world.status, pod.replica.role)
        is_on_record = pod.replica.index in carried.seen
        if not is_on_record and (not pod.deleting or pod.uid in self.world.unreachable):
            self.vanished_early = True
        del self.world.pods[pod.name]

    @stateful.precondition(lambda self: self.world.pods)
    @stateful.rule(data=st.data())
    def node_dies(self, data: st.DataObject) -> None:
        pod = self._pick(data)
        if not pod.phase.ended:
            self._place(pod)
            self.world.lose_node(pod.name)
            self._take(pod)

    @stateful.rule(says_why=st.booleans())
    def scheduler_finds_no_node(self, says_why: bool) -> None:
        message = "1 node(s) didn't match Pod's node affinity/selector" if says_why else ""
        for name, pod in self.world.pods.items():
            if pod.phase is observation.Phase.PENDING and not pod.node:
                since = pod.unschedulable_since or self.world.now
                self.world.update(name, waiting=message, unschedulable_since=since)

    @stateful.rule()
    def deleted_pods_go(self) -> None:
        self.world.reap()

    @stateful.rule(seconds=st.integers(1, 40))
    def time_passes(self, seconds: int) -> None:
        self.world.advance(seconds)

    @stateful.rule(seconds=st.sampled_from([-4000, -30, 4000]))
    def clock_jumps(self, seconds: int) -> None:
        self.world.advance(seconds)
        for name, pod in self.world.pods.items():  # As an operator that starts sees them.
            if pod.exit is not None and pod.exit.finished_at is not None:
                finished_at = min(pod.exit.finished_at, self.world.now)
                ended = dataclasses.replace(pod.exit, finished_at=finished_at)
                self.world.update(name, exit=ended)

    @stateful.rule(edit=st.sampled_from(EDITS))
    def person_edits(self, edit: tuple[edits.Path, Any]) -> None:
        self._edit(*edit)

    @stateful.rule(suspend=st.booleans())
    def person_suspends(self, suspend: bool) -> None:
        self._edit(("runPolicy", "suspend"), suspend)

    @stateful.precondition(lambda self: layout.build(self.world.job).is_elastic)
    @stateful.rule(workers=st.integers(1, 4))
    def person_scales(self, workers: int) -> None:
        self._edit(("tfReplicaSpecs", "<role>", "replicas"), workers)

    @stateful.rule(refusal=REFUSALS | st.none())
    def pods_are_refused(self, refusal: observation.Refusal | None) -> None:
        self.world.refusal = refusal

    @stateful.precondition(lambda self: self.world.workload)
    @stateful.rule()
    def kueue_admits(self) -> None:
        workload = queues.workload_of(self.world)
        self.world.workload = dataclasses.replace(workload, active=True)
        queues.write_admission(self.world)

    @stateful.precondition(lambda self: self.world.workload)
    @stateful.rule(active=st.booleans())
    def kueue_evicts(self, active: bool) -> None:
        eviction = ("Evicted", "True", "Preempted", "to make place for another")
        queues.write_conditions(self.world, eviction, active=active)

    @stateful.precondition(lambda self: self.world.workload)
    @stateful.rule()
    def workload_vanishes(self) -> None:
        self.world.workload = None

    @stateful.rule()
    def all_comes_to_rest(self) -> None:
        self._settle_world()

    @stateful.rule(data=st.data())
    def chief_reports(self, data: st.DataObject) -> None:
        reported = data.draw(st.none() | goodput_reports.RUN_SECONDS)
        goodput_reports.report(self.world, reported)

    @stateful.invariant()
    def each_second_belongs_to_one_activity(self) -> None:
        recorded = self.world.status.goodput
        if recorded is None:
            return
        total = datetime.timedelta(seconds=sum(recorded.seconds.values()))
        self.born = self.born or recorded.since - total
        assert recorded.since - total == self.born
        measured = goodput.measure(self.world.status, self.world.now)
        assert measured is not None
        assert set(measured.seconds) == set(names.Activity)
        assert min(measured.seconds.values()) >= 0
        end = recorded.since if recorded.phase is None else max(recorded.since, self.world.now)
        assert measured.age == (end - self.born).total_seconds()
        assert all(recorded.seconds[key] >= self.seconds[key] for key in self.seconds)
        self.seconds = recorded.seconds

    @stateful.invariant()
    def operators_may_know_any_earlier_status(self) -> None:
        if self.world.status != self.statuses[-1]:
            self.statuses.append(self.world.status)

    @stateful.invariant()
    def an_end_is_final(self) -> None:
        status = self.world.status
        succeeded = conditions.is_true(status, names.ConditionType.SUCCEEDED)
        failed = conditions.find(status, names.ConditionType.FAILED)
        assert not (succeeded and conditions.is_true(status, names.ConditionType.FAILED))
        if self.ended_as is not None:
            assert status.state is self.ended_as
        elif succeeded or (failed is not None and failed.reason not in NEVER_RAN):
            self.ended_as = status.state

    @stateful.invariant()
    def each_restart_is_counted_once(self) -> None:
        before, status = self.before, self.world.status
        after, earlier = status.restarts, before.restarts
        failures = after.failure - earlier.failure
        total = failures + after.disruption - earlier.disruption
        assert sum(status.restart_causes.values()) == after.failure + after.disruption
        assert after.failure <= self.limit
        assert total >= 0
        assert failures >= 0 or status.attempt - 1 in self.ports
        begun = status.attempt - before.attempt
        # Pods of before the first status count as an attempt, if their spec was edited meanwhile.
        assert 0 <= begun <= max(1 + self.began_unrecorded, total)
        self.began_unrecorded = not status.attempt and bool(self.world.created)
        rested = conditions.finished(before) or conditions.is_true(
            before, names.ConditionType.SUSPENDED
        )
        queued = conditions.is_false(before, names.ConditionType.ADMITTED)
        if not (rested or queued or before.attempt == 0 or status.workers != before.workers):
            assert begun <= total
        self.before = status

    @stateful.invariant()
    def the_budget_is_spent_before_it_ends_a_job(self) -> None:
        failed = conditions.find(self.world.status, names.ConditionType.FAILED)
        if failed is not None and failed.reason == names.Reason.BACKOFF_LIMIT_EXCEEDED:
            if self.spent is None:
                self.spent = self.world.job.spec.run_policy.backoff_limit
            assert self.world.status.restarts.failure >= self.spent

    @stateful.invariant()
    def no_pod_is_created_twice_in_an_attempt(self) -> None:
        if not self.vanished_early:
            assert len(set(self.world.created)) == len(self.world.created)

    @stateful.invariant()
    def gangs_of_two_attempts_never_meet(self) -> None:
        if layout.build(self.world.job).is_gang:
            pods = [pod for pod in self.world.pods.values() if not self.world.waits(pod)]
            assert len({self.world.run_of(pod).attempt for pod in pods}) <= 1

    @stateful.invariant()
    def a_release_replaces_only_pods_without_a_node(self) -> None:
        outcome = self.world.decide()
        if names.Reason.NODE_RELEASED in [event.reason for event in outcome.events]:
            pods = [self.world.pods[deletion.name] for deletion in outcome.deletions]
            of_attempt = [pod for pod in pods if view.is_current(pod, self.world.status)]
            assert all(pod.phase is observation.Phase.PENDING for pod in of_attempt)
            assert not any(pod.node for pod in of_attempt)

    @stateful.invariant()
    def counts_add_up(self) -> None:
        if conditions.finished(self.world.status):
            return
        for counts in self.world.status.replicas.values():
            parts = counts.pending + counts.running + counts.succeeded + counts.failed
            assert parts == counts.desired

    @stateful.invariant()
    def what_a_newer_operator_writes_stays(self) -> None:
        assert not self.newer or self.world.keeps_what_is_newer

    def teardown(self) -> None:
        """Whatever happened, the decisions come to rest, and a job that nothing troubles ends."""
        if not hasattr(self, "world"):
            return
        self._settle_world()
        for _ in range(2):  # A loss may settle first, and then its restart may pause.
            self.world.advance(GRACE_SECONDS)
            self._settle_world()
        if not self.world.deleted:
            self._check_pods()
            self._end_well()

    def _check_pods(self) -> None:
        status = self.world.status
        waits = conditions.is_false(status, names.ConditionType.ADMITTED)
        if conditions.finished(status) or status.state is names.State.SUSPENDED or waits:
            assert all(pod.phase.ended or pod.deleting for pod in self.world.pods.values())
        elif self.world.refusal is None and not self.world.unreachable:
            pod_names = {r.pod_name("job") for r in layout.build(self.world.job).all_replicas}
            done = sum(counts.succeeded for counts in status.replicas.values())
            done += sum(len(replica_records.read(status, role).ignored) for role in types.Role)
            assert len(self.world.pods) >= len(pod_names) - done
            self._check_gang()

    def _check_gang(self) -> None:
        """See that Kubernetes, if it has placed no pod, finds as many as it is to place."""
        pods = self.world.pods.values()
        if any(pod.node or pod.phase is not observation.Phase.PENDING for pod in pods):
            return
        for (version, name), group in self.world.groups.items():
            if version.startswith("scheduling.k8s.io/"):
                members = [pod for pod in pods if self.world.members.get(pod.uid) == name]
                least = group.spec["schedulingPolicy"]["gang"]["minCount"]
                assert not members or len(members) >= least

    def _end_well(self) -> None:
        """Let nothing trouble the job from now on."""
        world = self.world
        world.refusal = None
        world.correct()
        self._edit(("runPolicy", "suspend"), False)
        for _ in range(40):
            self._settle_world()
            if world.deleted or conditions.finished(world.status):
                return
            if world.workload is not None and conditions.is_false(
                world.status, names.ConditionType.ADMITTED
            ):
                self.kueue_admits()
            world.run()
            self._settle_world()
            for name, pod in list(world.pods.items()):
                if pod.phase is observation.Phase.RUNNING and pod.replica.role in (
                    types.Role.CHIEF,
                    types.Role.WORKER,
                ):
                    world.exit(name, 0)
            world.advance(60)
            world.now = max(world.now, world.decide().wake_at or world.now)
        raise AssertionError(f"the job waits for nothing: {world.status}")

    def _edit(self, path: edits.Path, value: Any) -> None:
        self.world.edit_field(path, value)
        self.limit = max(self.limit, self.world.job.spec.run_policy.backoff_limit)

    def _settle_world(self) -> None:
        """Come to rest, and see that the job waits for something."""
        self._let_agents_and_operator_act()
        if self.world.deleted:
            return
        outcome = self.world.decide()
        self.world.unreachable &= {pod.uid for pod in self.world.pods.values()}
        assert outcome.wake_at is None or outcome.wake_at > self.world.now
        status = self.world.status
        if not any((self.world.pods, self.world.refusal, self.world.workload)):
            resting = conditions.finished(status) or status.state is names.State.SUSPENDED
            latest = self.world.now + restarts.LONGEST_PAUSE
            assert resting or (outcome.wake_at is not None and outcome.wake_at <= latest)
        waits = (
            conditions.finished(status)
            or conditions.is_true(status, names.ConditionType.SUSPENDED)
            or conditions.is_true(status, names.ConditionType.CREATION_REFUSED)
            or (
                conditions.is_false(status, names.ConditionType.ADMITTED)
                and self.world.workload is not None
            )
            or outcome.wake_at is not None
            or any(self._may_end(pod) for pod in self.world.pods.values())
        )
        assert waits, status

    def _let_agents_and_operator_act(self) -> None:
        """Let all agents ask, and the operator decide, until neither has anything left to do."""
        for _ in range(20):
            for pod in self._waiting():
                self.world.obey(pod.name)
            before = self.world.writes
            self.world.run_until_quiet()
            if self.world.writes == before:
                return
        raise AssertionError("the agents do not come to rest")

    def _may_end(self, pod: observation.Pod) -> bool:
        """Whether the job's end depends on what becomes of a pod."""
        trains = pod.replica.role in (types.Role.CHIEF, types.Role.WORKER)
        return pod.deleting or (trains and not pod.phase.ended)

    def _take(self, pod: observation.Pod) -> None:
        """Note that the cluster takes a pod: only that excuses failures of its attempt."""
        if pod.replica.role is not types.Role.EVALUATOR:
            self.ports.add(self.world.run_of(pod).attempt)

    def _place(self, placed: observation.Pod) -> None:
        """Have the pods of a pod's attempt on nodes: its gang has its places."""
        for pod in self.world.pods.values():
            if pod.attempt == placed.attempt:
                self.world.update(pod.name, node=pod.node or "node")

    def _waiting(self) -> list[observation.Pod]:
        """Return the pods whose agents wait."""
        return [pod for _, pod in sorted(self.world.pods.items()) if self.world.waits(pod)]

    def _pick(self, data: st.DataObject) -> observation.Pod:
        return self.world.pods[data.draw(st.sampled_from(sorted(self.world.pods)))]


JobMachine.TestCase.settings = hypothesis.settings(stateful_step_count=40)
TestAnyOrder = JobMachine.TestCase
