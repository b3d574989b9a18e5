"""The clocks of ranks within one traced function."""

import pytest
import tensorflow as tf
from tensorflow.python.framework import config

from testing.trainer import ranks
from tfparallel_trainer.engines.split.execution import rank_model


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_the_clock_of_one_rank_waits_for_itself_and_for_no_other(
    monkeypatch: pytest.MonkeyPatch, *, is_deterministic: bool
) -> None:
    monkeypatch.setattr(config, "is_op_determinism_enabled", lambda: is_deterministic)
    first, second = (rank_model.Clock(device) for device in ranks.DEVICES[:2])
    read = tf.function(
        lambda: [tensor.read() for tensor in (first, second, first)], autograph=False
    )
    operations = read.get_concrete_function().graph.get_operations()
    calls = [operation for operation in operations if operation.type.endswith("PartitionedCall")]
    assert len(calls) == 3
    orders = [
        [control_input for control_input in call.control_inputs if control_input in calls]
        for call in calls
    ]
    assert orders == [[], [], [calls[0]]]
    early, _, late = (float(moment) for moment in read())
    assert 0 < early <= late
