"""What the engine remembers of a job is one value, and goes at once."""

import dataclasses

from testing.operator import builders
from tfparallel_operator.engine.observe.job_memory import JobMemories, JobMemory, Pause
from tfparallel_operator.engine.workqueue import queue

DIGITS, OTHER = queue.Key("team", "digits"), queue.Key("team", "other")


def remember(memories: JobMemories, key: queue.Key) -> JobMemory:
    """Fill the memory of a job."""
    memory = memories.recall(key)
    memory.backoff.count_failure()
    memory.pause = Pause(builders.START, 3)
    memory.valid_spec = ("uid", 3)
    memory.accepted_spec = ("uid", b"{}")
    memory.uses = ("uid", 3), ()
    return memory


def test_forgetting_a_job_leaves_nothing_of_it_and_all_of_the_others() -> None:
    memories = JobMemories()
    memory, other = remember(memories, DIGITS), remember(memories, OTHER)
    assert memories.forget(DIGITS) is memory
    fresh = memories.recall(DIGITS)
    for field in dataclasses.fields(JobMemory):
        if field.name != "backoff":
            assert not getattr(fresh, field.name), field.name
    assert fresh.backoff is not memory.backoff
    assert memories.recall(OTHER) is other


def test_after_a_restore_of_etcd_no_generation_is_remembered() -> None:
    memories = JobMemories()
    memory = remember(memories, DIGITS)
    memories.forget_generations()
    assert memories.recall(DIGITS) is memory
    assert (memory.pause, memory.valid_spec, memory.accepted_spec, memory.uses) == (None,) * 4
