"""Nodes are measured where they run."""

import socket
import subprocess
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import keras
import pytest

from testing import repeats
from testing.trainer import split_models
from tfparallel_trainer import tasks
from tfparallel_trainer.comms import cluster
from tfparallel_trainer.contract import environment
from tfparallel_trainer.engines.split.model import recording
from tfparallel_trainer.engines.split.planning import calibrate, costs, hardware, links

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),  # within Keras
    pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask:UserWarning"),
]


def seconds(line: costs.Line, examples: int) -> float:
    return line.fixed + line.per_example * examples


def test_equal_layers_are_measured_once_and_more_work_takes_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build() -> Any:
        wide = [keras.layers.Dense(1000) for _ in range(2)]
        return keras.Sequential([keras.Input((1000,)), *wide, keras.layers.Dense(10)])

    # Other work on the machine takes time, but no CPU time of this process.
    monkeypatch.setattr(time, "perf_counter", time.process_time)
    model = recording.record(split_models.bare(build))
    first, second, last = calibrate.measure(model, 64)
    assert first is second
    assert seconds(first.forward, 64) > seconds(last.forward, 64) > 0
    assert seconds(first.backward, 64) > seconds(last.backward, 64)


@pytest.mark.parametrize("name", repeats.some(["masked", "several", "operations"], ["several"]))
def test_every_kind_of_node_can_be_measured(name: str) -> None:
    model = recording.record(split_models.bare(split_models.ALL[name]))
    node_times = calibrate.measure(model, 4)
    assert len(node_times) == len(model.nodes)
    assert all(seconds(node_time.forward, 4) > 0 for node_time in node_times)


def test_an_update_is_measured_where_there_is_one() -> None:
    model = recording.record(split_models.bare(split_models.ALL["several"]))
    update_times = calibrate.update(keras.optimizers.Adam(), model)
    assert 1e6 < update_times.bandwidth < 1e13  # bytes a second
    assert update_times.weight_seconds >= 0
    nothing = keras.Sequential([keras.Input((3,)), keras.layers.ReLU()])
    bare = recording.record(split_models.bare(lambda: nothing))
    assert calibrate.update(keras.optimizers.Adam(), bare) == hardware.Update()


class StoppedError(Exception):
    """Raised where a process would start."""


def test_nobody_else_gets_the_ports_of_the_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: object, *, env: Mapping[str, str], **__: object) -> NoReturn:
        for task in tasks.parse(env[environment.TF_CONFIG]).tasks:
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(cluster.endpoint(task))
            cluster.listen(task).close()
        raise StoppedError

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(StoppedError):
        links.measure(hardware.DeviceCluster())


def test_links_are_measured_between_processes_and_within_one() -> None:
    measured = links.measure(hardware.DeviceCluster())
    for link in (measured.inside, measured.across):
        assert link.latency > 0
        assert link.bandwidth > 1e6
