"""Compares steps of a divided model with one process.

`split_referee` decides when a step is checked, and gives the verdict. `step_trial` is the step of
all ranks on a few examples. `gathering` gathers what ranks hold. `single_process` builds
the model of one process. What does not depend on the split is in `objective.referee`.
"""
