"""What operations of TensorFlow ask for, by its profiler.

`tf.config.experimental.get_memory_info` counts what the allocator set aside instead, which is up to
twice as much where the holes between other tensors are of such a size, and so differs between runs.
Of tensors of less than 256 KiB neither tells.
"""

import pathlib
import tempfile
from collections.abc import Callable, Iterator

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

_ALLOCATION = "MemoryAllocation"
_DEALLOCATION = "MemoryDeallocation"
_OPTIONS = tf.profiler.experimental.ProfilerOptions(
    host_tracer_level=3, python_tracer_level=0, device_tracer_level=0
)
"""Allocations are of the third level of detail."""


def most(run: Callable[[], object]) -> int:
    """The most bytes that operations of this process had at a time, of those that it asked for.

    Args:
        run: what the operations belong to; what it was given, and had before, does not count.
    """
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder, _OPTIONS):
            run()
        (file,) = pathlib.Path(folder).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(file.read_bytes())
    allocations: dict[int, int] = {}
    total = peak = 0
    for _, address, size in sorted(_changes(space)):
        total -= allocations.pop(address, 0)
        if size:
            allocations[address] = size
            total += size
        peak = max(peak, total)
    return peak


def _changes(space: xplane_pb2.XSpace) -> Iterator[tuple[int, int, int]]:
    """When, in picoseconds; at which address; how many bytes, none where they are given back."""
    for plane in space.planes:
        names = {key: metadata.name for key, metadata in plane.stat_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                if name not in (_ALLOCATION, _DEALLOCATION):
                    continue
                stats = {names[stat.metadata_id]: stat for stat in event.stats}
                size = stats["requested_bytes"].int64_value if name == _ALLOCATION else 0
                moment = line.timestamp_ns * 1000 + event.offset_ps
                yield moment, _number(stats["addr"]), size


def _number(stat: xplane_pb2.XStat) -> int:
    """Addresses of one run are of either type."""
    return int(stat.uint64_value or stat.int64_value)
