"""Connects to the TPU of this process."""

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.comms import cluster, tasks, tpu_name
from tfparallel_trainer.runtime import settings


def connect(settings: settings.Settings, say: Callable[[str], None]) -> Any:
    """Initialise the TPU that the environment names, and give the strategy that uses all of it.

    Raises:
        BadConfigurationError: there is no TPU, or TensorFlow cannot use it.
        StartTimeoutError: its hosts do not answer.
    """
    name = tpu_name.find(os.environ)
    hosts = [
        tasks.Task("tpu", index, address) for index, address in enumerate(tpu_name.addresses(name))
    ]
    # TensorFlow waits for them for ever, without a word.
    cluster.reach(settings.cluster, hosts, settings.job.trainer.start_timeout_seconds, say)
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        if name != tpu_name.LOCAL:
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (tf.errors.OpError, OSError, ValueError, RuntimeError, ImportError) as error:
        reason = " ".join(str(error).split())[:200]
        raise errors.BadConfigurationError(
            f"strategy is 'TPU', and TensorFlow cannot use the TPU {name!r} "
            f"({type(error).__name__}: {reason}). See that the name is right and that this image's "
            "TensorFlow is one for TPUs (tensorflow-tpu)."
        ) from error
