"""What an exception means for the run."""

import pathlib

import pytest
import tensorflow as tf

from tfparallel_trainer import errors, user
from tfparallel_trainer.loop import exit_report

MISMATCH = (
    "Collective ops is aborted by: Shape mismatch in the collective instance 33554433. Op at "
    "device /job:localhost/replica:0/task:0/device:CPU:0 expected shape [24] but another member "
    "in the group expected shape [28]."
)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("kind", [tf.errors.InvalidArgumentError, tf.errors.AbortedError])
def test_replicas_that_differ_are_neither_bad_data_nor_a_lost_peer(kind: type, alone: bool) -> None:
    module = user.Module(pathlib.Path("model.py"), {})
    translated = exit_report.translate(kind(None, None, MISMATCH), alone, module)
    assert type(translated) is errors.UserCodeError
    assert "model.py: Replicas of the model do not compute the same" in str(translated)
    assert "the data fits" not in str(translated)
