"""Calls in a block run graphs as they were traced, and other calls and threads do not."""

import threading
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context

from tfparallel_trainer.objective import eager_options


def transpositions() -> int:
    """How many operations a call runs that an optimized graph does without."""
    function = tf.function(
        lambda x: tf.transpose(tf.transpose(x, name="flip"), name="flip"), autograph=False
    )
    context.enable_run_metadata()
    try:
        function(tf.ones((2, 3)))
        metadata = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    assert isinstance(metadata, config_pb2.RunMetadata)
    nodes = [node for graph in metadata.partition_graphs for node in graph.node]
    assert nodes
    return sum("flip" in node.name and "Transpose" in node.op for node in nodes)


def options() -> Any:
    return context.context().function_call_options.config_proto_serialized


def test_a_graph_is_run_as_it_was_traced() -> None:
    assert transpositions() == 0
    with eager_options.unoptimized():
        assert transpositions() == 2
    with pytest.raises(ZeroDivisionError), eager_options.unoptimized():
        _ = 1 // 0
    assert transpositions() == 0


def test_other_threads_optimize_graphs() -> None:
    before = options()
    others: list[Any] = []
    with eager_options.unoptimized():
        assert options() != before
        thread = threading.Thread(target=lambda: others.append(options()))
        thread.start()
        thread.join()
    assert others == [before]
