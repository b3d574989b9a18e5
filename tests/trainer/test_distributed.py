"""Training under the user's own tf.distribute.Strategy gives the weights of one process."""

import pathlib

import pytest

from tests.trainer import launch, reference
from tests.trainer.test_equality import TOLERANCE, largest_difference

STEPS = 15
MIRRORED = """
def build_strategy():
    import tensorflow as tf

    devices = tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices])
"""
ONE_DEVICE = """
def build_strategy():
    import tensorflow as tf

    return tf.distribute.OneDeviceStrategy("/cpu:0")
"""
MULTI_WORKER = """
def build_strategy():
    import tensorflow as tf

    return tf.distribute.MultiWorkerMirroredStrategy()
"""


def write(folder: pathlib.Path, name: str, strategy: str) -> pathlib.Path:
    """A module of the tests' models that brings a strategy."""
    folder.mkdir()
    text = (reference.MODELS / f"{name}.py").read_text()
    (folder / "model.py").write_text(f"{text}\n{strategy}")
    return folder


CASES = [  # model, global batch, strategy, processes, devices of each
    pytest.param("mlp", 15, MIRRORED, 1, 2, id="mlp-mirrored"),
    pytest.param("mlp", 15, MULTI_WORKER, 2, 1, id="mlp-multi-worker"),
    pytest.param("mlp", 15, ONE_DEVICE, 1, 1, id="mlp-one-device"),
    pytest.param("cnn", 16, MIRRORED, 1, 2, id="cnn-mirrored"),
    pytest.param("cnn", 16, MULTI_WORKER, 2, 1, id="cnn-multi-worker"),
    pytest.param("tokens", 8, MIRRORED, 1, 2, id="tokens-mirrored"),
    pytest.param("tokens", 8, MULTI_WORKER, 2, 1, id="tokens-multi-worker"),
]


@pytest.mark.trainer
@pytest.mark.parametrize(("name", "batch", "strategy", "processes", "devices"), CASES)
def test_weights_equal_one_process(
    name: str, batch: int, strategy: str, processes: int, devices: int, tmp_path: pathlib.Path
) -> None:
    trainer = {"steps": STEPS, "globalBatchSize": batch, "seed": 5, "checkpoint": {"claim": "c"}}
    started = launch.environments(
        tmp_path,
        write(tmp_path / "source", name, strategy),
        trainer,
        processes=processes,
        devices=devices,
        strategy="Custom",
    )
    with launch.Group(tmp_path / "logs", started) as group:
        with reference.floatx():
            expected, _ = reference.train(reference.load(name), STEPS, batch, 5)
        ended = group.wait()
    assert [one.code for one in ended] == [0] * processes, ended
    difference = largest_difference(tmp_path, expected)
    print(f"{name}, {processes}x{devices}: largest difference of a weight {difference:.1e}")
    assert difference <= TOLERANCE
