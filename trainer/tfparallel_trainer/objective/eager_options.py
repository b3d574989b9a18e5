"""How TensorFlow carries out the calls of traced functions in one thread."""

import contextlib
import copy
from collections.abc import Iterator

from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context  # the public API has options of all threads only


@contextlib.contextmanager
def unoptimized() -> Iterator[None]:
    """Run graphs as they were traced.

    To optimize a graph takes longer than what that saves in a few calls.
    """
    eager = context.context()
    options = eager.function_call_options
    config = config_pb2.ConfigProto.FromString(options.config_proto_serialized)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    changed = copy.copy(options)
    changed.config_proto_serialized = config
    eager.function_call_options = changed
    try:
        yield
    finally:
        eager.function_call_options = options
