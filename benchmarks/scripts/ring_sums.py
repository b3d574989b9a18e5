"""Sums tensors of two processes with options of TensorFlow: `ring_sums.py OPTIONS`, as JSON.

TensorFlow has no public way to set options of the servers that carry its collectives.
"""

import json
import statistics
import sys
import time

import tensorflow as tf
from tensorflow.python.eager import context

from benchmarks.scripts import events

SIZES = {"4 KiB": (1, 1 << 10), "4 MiB": (1, 1 << 20), "8 of 1 MiB": (8, 1 << 18)}
"""How many tensors of float32 are summed at once, and the elements of each."""
WARM, COUNTED = 5, 40


def main(options):
    tf.config.threading.set_inter_op_parallelism_threads(options.get("threads", 1))
    _set_options(options)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    for name, (count, elements) in SIZES.items():
        seconds = _measure(strategy, [tf.ones([elements]) for _ in range(count)])
        events.write("summed", size=name, seconds=seconds)


def _set_options(options):
    """Set options of the server that the strategy starts."""
    start = context.Context.enable_collective_ops

    def start_with_options(self, server_def):
        config = server_def.default_session_config
        config.rpc_options.num_channels_per_target = options.get("channels", 1)
        config.experimental.recv_buf_max_chunk = options.get("chunk", 0)
        start(self, server_def)

    context.Context.enable_collective_ops = start_with_options


def _measure(strategy, tensors):
    """The median of the seconds that it takes to sum these tensors over both processes."""

    @tf.function
    def step(tensors):
        return strategy.run(_sums, args=(tensors,))

    seconds = []
    for _ in range(WARM + COUNTED):
        begin = time.perf_counter()
        for total in step(tensors):
            total.numpy()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[WARM:])


def _sums(tensors):
    replica = tf.distribute.get_replica_context()
    return [replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(part)) for part in tensors]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
