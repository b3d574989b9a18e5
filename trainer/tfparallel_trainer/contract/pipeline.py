"""How the pipeline of a run went, with what was planned of it: `outputs.PIPELINE`."""

from tfparallel_trainer.contract import base, plan, progress


class Pipeline(base.Model):
    """What the chief of a split model has seen of the last steps."""

    placement: progress.Placement
    """Where the stages are, and how long each computes in a step."""
    planned: plan.Plan | None
    """What the planner expected; absent where mesh.cuts says where stages begin."""
    step_seconds: float | None
    """From the begin of a step to that of the next, the median; absent after one step."""
    spans: tuple[plan.Span, ...]
    """When each stage of the first replica worked on what, in the step of median length. Messages
    are not told apart from waiting. Clocks of several machines may differ by milliseconds."""
