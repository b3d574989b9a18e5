"""The CPU of the test process as several devices, so that it can hold several ranks."""

import os

VARIABLE = "TFPARALLEL_TEST_DEVICES"
COUNT = int(os.environ.get(VARIABLE, "8"))
NAMES = [f"/device:CPU:{number}" for number in range(COUNT)]
_BEFORE_IMPORT = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
}
"""TensorFlow reads these only while it is imported."""


def divide() -> None:
    """Import TensorFlow and divide the CPU; before anything else uses TensorFlow."""
    for name, value in _BEFORE_IMPORT.items():
        os.environ.setdefault(name, value)
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration() for _ in range(COUNT)],
    )
