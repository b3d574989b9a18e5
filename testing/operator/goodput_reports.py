"""Reports of a coordinator that say where the time of its process went."""

from hypothesis import strategies as st

from testing.operator import builders
from tfparallel_operator.api import job_status
from tfparallel_trainer.contract import progress

RUN_SECONDS = st.builds(
    progress.RunSeconds,
    training=st.integers(0, 60),
    input_wait=st.integers(0, 20),
    evaluating=st.integers(0, 20),
    checkpointing=st.integers(0, 20),
    recomputing=st.integers(0, 20),
)
"""True and false ones: a pod may report anything."""


def report(world: builders.World, seconds: progress.RunSeconds | None, step: int = 1) -> None:
    """Let a report arrive in a status; without seconds, it is that of an older trainer."""
    sent = progress.Report(step=step, seconds=seconds)
    reported = job_status.of_report(sent, world.now).progress
    status = world.status.model_copy(update={"progress": reported})
    world.job = world.job.model_copy(update={"status": status})
