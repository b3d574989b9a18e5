"""A rank's operations wait for earlier ones; on CPUs, messages overlap with computation."""

import tensorflow as tf

from tfparallel_trainer.engines.split.execution import ordering


def waits(device: str) -> dict[str, set[str]]:
    """For each operation of a rank, in the order of its list, those that it waits for."""
    graph = tf.Graph()
    scope = ordering.OrderingScope(device)
    with graph.as_default():
        with scope.compute(begins_action=True) as results:
            results += [tf.constant(1.0, name="first"), None]
        with scope.compute(begins_action=True) as results:
            results.append(tf.constant(1.0, name="second"))
        with scope.send() as results:
            results.append(tf.constant(1.0, name="send"))
        with scope.receive() as results:
            results.append(tf.constant(1.0, name="receive"))
        with scope.send() as results:
            results.append(tf.constant(1.0, name="send_again"))
        with scope.compute(begins_action=True) as results:
            results.append(tf.constant(1.0, name="third"))
        scope.join_messages()
        with scope.compute():
            tf.no_op(name="last")
    operations = graph.get_operations()
    return {one.name: {before.name for before in one.control_inputs} for one in operations}


def test_messages_overlap_with_computation_on_cpus() -> None:
    assert waits("/device:CPU:0") == {
        "first": set(),
        "second": {"first"},
        "send": set(),
        "receive": {"first"},
        "send_again": {"send"},
        "third": {"second", "receive"},
        "last": {"third", "send_again"},
    }


def test_nothing_overlaps_on_gpus() -> None:
    assert waits("/device:GPU:0") == {
        "first": set(),
        "second": {"first"},
        "send": {"second"},
        "receive": {"second", "send"},
        "send_again": {"second", "send", "receive"},
        "third": {"second", "send", "receive", "send_again"},
        "last": {"third"},
    }
