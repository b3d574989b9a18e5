"""When groups of GPUs use NCCL, and what their operations then ask TensorFlow for."""

import types
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing.trainer import logical_devices, ranks
from testing.trainer import runs as trainings
from tfparallel_trainer import errors, tasks
from tfparallel_trainer.comms import agreement, collectives, nccl, shape
from tfparallel_trainer.engines.mesh import mesh_steps
from tfparallel_trainer.engines.strategy import strategy_run

DEVICES = logical_devices.NAMES
GPU = "/job:worker/replica:0/task:1/device:GPU:0"
HINT = collectives.Hint

RESULTS = {
    "sum": lambda end, tensor: end.sum(tensor),
    "gather": lambda end, tensor: end.gather(tensor),
    "all_to_all": lambda end, tensor: end.all_to_all(tensor),
    "gather_rows": lambda end, tensor: end.gather_rows([tensor])[0],
    "sum_all": lambda end, tensor: end.sum_all([tensor, tensor])[1],
}


@pytest.fixture(autouse=True)
def no_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices of this process that use NCCL in no other test."""
    monkeypatch.setattr(collectives, "_orders", {})


@pytest.mark.parametrize(
    ("device", "uses_nccl", "hint"),
    [
        (GPU, True, HINT.NCCL),
        (GPU, False, HINT.AUTO),
        ("/device:GPU:3", True, HINT.NCCL),
        ("/device:CPU:0", True, HINT.RING),
        ("/job:chief/replica:0/task:0/device:CPU:1", False, HINT.RING),
        ("", True, HINT.RING),
    ],
)
def test_the_hint_follows_from_the_devices(device: str, uses_nccl: bool, hint: str) -> None:
    assert collectives.choose_hint(device, uses_nccl) == hint


@pytest.mark.parametrize(
    ("table", "obstacle"),
    [
        ([[1, 1, 10, 11], [1, 1, 12, 13]], ""),
        ([[1, 1, 10]], ""),
        ([[1, 1, 10, 11], [0, 1, 12, 13]], "this TensorFlow is built without it"),
        ([[1, 1, 10, 11], [1, 0, 12, 13]], "TensorFlow divides a GPU into several devices"),
        ([[1, 1, 10, 11], [1, 1, 12, 10]], "several ranks share a GPU"),
        ([[1, 1, 10, 10]], "several ranks share a GPU"),
    ],
)
def test_gpus_use_nccl_where_each_rank_has_its_own(table: list[list[int]], obstacle: str) -> None:
    assert nccl.judge(table) == obstacle
    assert nccl.describe(obstacle).endswith(obstacle or "by NCCL")


def test_a_fallback_is_the_same_in_all_processes_and_fits_63_bits() -> None:
    numbers = [agreement.digest(address) for address in nccl._addresses(4)]
    assert len(set(numbers)) == 4, "GPUs of unknown address are taken for different ones"
    assert all(0 <= number < 1 << 63 for number in numbers)


def test_cpus_of_a_build_without_nccl_have_an_obstacle() -> None:
    alone = tasks.Cluster((tasks.Task("worker", 0, "localhost:0"),), 0)
    assert nccl.find_obstacle(alone, [GPU]) == "this TensorFlow is built without it"


def test_processes_decide_together(runs: trainings.Runs) -> None:
    environments = runs.environments("", processes=2, devices=2)
    with runs.group(environments, ("-m", "testing.trainer.nccl_worker")) as group:
        for process in group.wait():
            assert process.code == 0, process.errors
            lines = process.output.splitlines()[-2:]
            assert lines == ["this TensorFlow is built without it"] * 2


@pytest.mark.parametrize(
    ("strategy", "device", "is_advised"),
    [
        (tf.distribute.experimental.CommunicationImplementation.AUTO, GPU, True),
        (tf.distribute.experimental.CommunicationImplementation.NCCL, GPU, False),
        (tf.distribute.experimental.CommunicationImplementation.AUTO, "/device:CPU:0", False),
    ],
)
def test_a_strategy_whose_gpus_do_without_nccl_is_told(
    strategy: Any, device: str, is_advised: bool
) -> None:
    options = tf.distribute.experimental.CommunicationOptions(implementation=strategy)
    extended = types.SimpleNamespace(_communication_options=options, worker_devices=(device,))
    assert len(list(strategy_run.advise_transport(extended))) == is_advised


def test_nccl_without_gpus_is_refused() -> None:
    implementation = tf.distribute.experimental.CommunicationImplementation.NCCL
    options = tf.distribute.experimental.CommunicationOptions(implementation=implementation)
    strategy_run.check_transport(
        types.SimpleNamespace(_communication_options=options, worker_devices=(GPU,))
    )
    cpu = types.SimpleNamespace(
        _communication_options=options, worker_devices=(GPU, "/device:CPU:0")
    )
    with pytest.raises(errors.UserCodeError, match="NCCL, and /device:CPU:0 is no GPU: use"):
        strategy_run.check_transport(cpu)


def test_strategies_of_tensorflow_choose_as_the_page_says() -> None:
    mirrored = ranks.strategy(3).extended
    assert mirrored._communication_options.implementation.value == "RING", "on CPUs"
    assert list(strategy_run.advise_transport(mirrored)) == []
    assert list(strategy_run.advise_transport(ranks.strategy(1).extended)) == []


def ends(hint: collectives.Hint | None, size: int = 2) -> list[collectives.Communicator]:
    """Both ends of a group, on devices of this process."""
    group = shape.MeshShape(data=size, generation=ranks.generation()).group(0, shape.Axis.DATA)
    return [
        collectives.Communicator(group.key, size, index, DEVICES[index], hint)
        for index in range(size)
    ]


def trace(communicators: list[collectives.Communicator], operation: str, dtype: Any) -> Any:
    """Return a function in which each end of a group takes part in an operation."""

    def take_part() -> list[Any]:
        results = []
        for index, end in enumerate(communicators):
            with tf.device(DEVICES[index]):
                end.begin(collectives.Program.TRAIN)
                tensor = tf.cast(tf.reshape(tf.range(4) + index, (2, 2)), dtype)
                results.append(RESULTS[operation](end, tensor))
        return results

    return tf.function(take_part, autograph=False).get_concrete_function()


def hints(graph: Any) -> set[str]:
    """Return what the collective operations of a graph ask for."""
    return {
        node.get_attr("communication_hint").decode()
        for node in graph.get_operations()
        if node.type.startswith("Collective")
    }


@pytest.mark.parametrize("operation", RESULTS)
def test_operations_of_gpus_ask_for_nccl(operation: str) -> None:
    traced = trace(ends(HINT.NCCL), operation, tf.float32)
    assert hints(traced.graph) == {"nccl"}
    expected = trace(ends(None), operation, tf.float32)
    assert hints(expected.graph) == {"ring"}
    for result, other in zip(traced(), expected(), strict=True):
        np.testing.assert_array_equal(result, other)


def test_types_that_nccl_does_not_know_go_by_the_hosts() -> None:
    assert hints(trace(ends(HINT.NCCL), "sum", tf.bfloat16).graph) == {"auto"}
    assert hints(trace(ends(HINT.NCCL), "gather", tf.int64).graph) == {"nccl"}


def test_pairs_have_no_order_and_so_no_nccl() -> None:
    def send() -> list[Any]:
        results: list[Any] = []
        for index, end in enumerate(ends(HINT.NCCL)):
            with tf.device(DEVICES[index]):
                end.begin(collectives.Program.TRAIN)
                tensors = {0: tf.ones((2,))} if index == 0 else {}
                results += end.send_receive([(0, 1)], tensors, {0: (2,)}, tf.float32)
        return [results[0], results[2]]

    graph = tf.function(send, autograph=False).get_concrete_function().graph
    assert hints(graph) == {"auto"}


@pytest.mark.parametrize(("hint", "is_ordered"), [(HINT.NCCL, True), (HINT.AUTO, False)])
def test_all_groups_of_a_gpu_keep_one_order(hint: collectives.Hint, is_ordered: bool) -> None:
    first, second = ends(hint), ends(hint)

    def add_up() -> list[Any]:
        results = []
        for communicators in (first, second):
            for index, end in enumerate(communicators):
                with tf.device(DEVICES[index]):
                    end.begin(collectives.Program.TRAIN)
                    results.append(end.sum(tf.ones((2,))))
        return results

    graph = tf.function(add_up, autograph=False).get_concrete_function().graph
    sums = [node for node in graph.get_operations() if node.type == "CollectiveReduceV2"]
    for index in range(2):
        before, after = (node for node in sums if node.device == sums[index].device)
        assert (before in after.control_inputs) is is_ordered


def network() -> Any:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])


@pytest.mark.parametrize(("uses_nccl", "hint"), [(True, "nccl"), (False, "auto")])
def test_a_step_of_gpus_asks_for_nccl(
    uses_nccl: bool, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The devices are parts of the CPU: what is traced follows from what they are called."""
    choose_hint = collectives.choose_hint
    monkeypatch.setattr(
        collectives, "choose_hint", lambda device, uses: choose_hint(f"{device}:GPU:", uses)
    )
    monkeypatch.setattr(collectives, "_uses_nccl", False)
    collectives.use_nccl(uses_nccl)
    module = ranks.module(network, lambda model: model.compile("adam", "mse"))
    examples = (np.ones((8, 4), "float32"), np.ones((8, 1), "float32"), None)
    batches = ranks.feed_of(examples, 2, 8)
    step = mesh_steps.MeshTrainStep(module, ranks.build(module, examples, 2), batches.spec, 8)
    traced = step._function((True, True), True)
    assert hints(traced.graph) == {hint}
