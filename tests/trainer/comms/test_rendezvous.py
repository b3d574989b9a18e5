"""Processes that meet before TensorFlow starts, and those that end before it has."""

import concurrent.futures
import pathlib
import signal
import socket

import pytest

from testing import waiting
from testing.trainer import launch
from testing.trainer import runs as trainings
from tfparallel.backends.local import ports
from tfparallel_trainer import errors, tasks
from tfparallel_trainer.comms import rendezvous
from tfparallel_trainer.contract import environment, exits


def clusters(size: int) -> list[tasks.Cluster]:
    """The same processes, as each of them sees them."""
    members = tuple(
        tasks.Task("worker", index, f"127.0.0.1:{port}")
        for index, port in enumerate(ports.allocate(size))
    )
    return [tasks.Cluster(members, me) for me in range(size)]


def wait(job_cluster: tasks.Cluster, timeout: float = 20) -> rendezvous.Rendezvous:
    return rendezvous.meet(job_cluster, timeout, lambda _: None)


def test_all_meet_and_leave_their_ports() -> None:
    everyone = clusters(4)
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        connections = list(threads.map(wait, everyone))
    for job_cluster in everyone:
        socket.create_server(
            ("127.0.0.1", int(job_cluster.task.address.rpartition(":")[2]))
        ).close()
    for connection in connections:
        connection.close()


def test_who_is_not_there_is_named_and_what_answers_instead() -> None:
    first, second, third = clusters(3)
    port = int(third.task.address.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)) as other:
        other.settimeout(10)
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            pending_meeting = threads.submit(wait, first, 2)
            connection, _ = other.accept()
            connection.sendall(b"\x00\x00\x06\x04")  # as a server of TensorFlow's may
            connection.close()
            with pytest.raises(errors.StartTimeoutError) as caught:
                pending_meeting.result()
    assert f"worker-1 ({second.task.address}: Connection refused)" in str(caught.value)
    assert f"worker-2 ({third.task.address}: " in str(caught.value)


def test_a_peer_that_has_come_is_waited_for_until_its_name_has_an_address_here() -> None:
    first, second = clusters(2)
    _, _, port = second.task.address.rpartition(":")
    nameless = tasks.Task("worker", 1, f"worker-1.invalid:{port}")  # no name server knows it
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        pending_meeting = threads.submit(wait, second)
        with pytest.raises(errors.StartTimeoutError, match=r"worker-1 \(worker-1\.invalid:"):
            wait(tasks.Cluster((first.task, nameless), 0), 2)
        pending_meeting.result().close()


def test_a_peer_that_ends_while_others_are_waited_for_is_lost() -> None:
    first, second, _ = clusters(3)
    with (
        rendezvous.Rendezvous(second) as other,
        concurrent.futures.ThreadPoolExecutor(1) as threads,
    ):
        pending_meeting = threads.submit(wait, first)
        waiting.until(lambda: not other.absent(first.task), "the first process")
        other.close()
        with pytest.raises(errors.PeerLostError, match="worker-1 ended while the processes met"):
            pending_meeting.result(150)


MODEL = """
import json, os, pathlib, time
import keras
import numpy as np
import tensorflow as tf

def build_strategy():
    connects = pathlib.Path(os.environ["CONNECTS"])
    if os.environ["LEAVES"] == json.loads(os.environ["TF_CONFIG"])["task"]["type"]:
        if os.environ["WHEN"] == "late":
            while not connects.exists():
                time.sleep(0.05)
            time.sleep(1)
        raise RuntimeError("not with me")
    connects.touch()
    return tf.distribute.MultiWorkerMirroredStrategy()

def build_model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

def compile_model(model):
    model.compile("sgd", "mse")

def training_data():
    return np.ones((64, 4)), np.ones((64, 1))
"""


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("role", "when"), [("worker", "at once"), ("worker", "late"), ("chief", "late")]
)
def test_who_ends_right_after_the_meeting_leaves_nobody_waiting(
    role: str, when: str, tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    started = launch.environments(
        tmp_path,
        tmp_path,
        {"steps": 3},
        processes=2,
        strategy="Custom",
        more={
            "LEAVES": role,
            "WHEN": when,
            "CONNECTS": str(tmp_path / "connects"),
            environment.FAILURE_FILE: "",
        },
    )
    failure_file = tmp_path / "words"
    names = ["chief", "worker"]
    leaves, stays = names.index(role), 1 - names.index(role)
    started[stays][environment.FAILURE_FILE] = str(failure_file)
    with runs.group(started) as group:
        assert group.processes[leaves].wait(240) == exits.Exit.USER_ERROR, group.result(leaves)
        code = group.processes[stays].wait(240)
    assert code in {exits.Exit.PEER_LOST, -signal.SIGALRM}, group.result(stays)
    assert f"A peer was lost: {role}-0 ended while" in group.result(stays).errors
    assert failure_file.read_text().startswith(f"A peer was lost: {role}-0 ended while")
    if when == "late":  # by then TensorFlow was starting, which no Python can end
        assert code == -signal.SIGALRM
        assert "ended while TensorFlow connected the processes." in failure_file.read_text()
