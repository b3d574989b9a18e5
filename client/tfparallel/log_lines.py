"""Log lines that say nothing about a run."""

import re

_START_OF_TENSORFLOW = re.compile(
    r"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    r"|I\d{4} .* port\.cc:\d+\] oneDNN custom operations are on\."
)
"""Lines that each process prints at its start, whatever TF_CPP_MIN_LOG_LEVEL says, because
TensorFlow reads that later (tensorflow/tensorflow#100442)."""


def is_start_of_tensorflow(text: str) -> bool:
    """Whether a line is one of the two with which each process of TensorFlow begins."""
    return _START_OF_TENSORFLOW.match(text) is not None
