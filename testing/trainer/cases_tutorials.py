"""The tutorials on distribution that others wrote, and how a job runs each.

`published` holds each script as its source has it, in our words and with local data; with Keras 2
it runs unchanged. The page on tutorials shows what changes for Keras 3.
"""

import dataclasses
import re
from collections.abc import Mapping

from testing import paths

FOLDER = paths.TRAINER_MODELS / "tutorials"
PAGE = paths.PAGES / "how-to/tutorials.md"
WORKERS = {"Worker": 2}
SERVERS = {"Chief": 1, "Worker": 2, "PS": 2}
_TENSORFLOW = "https://www.tensorflow.org/tutorials/distribute"


@dataclasses.dataclass(frozen=True)
class Tutorial:
    """A script, its title at its source, and the replicas of its job."""

    name: str
    title: str
    address: str
    strategy: str
    replicas: Mapping[str, int]
    arguments: tuple[str, ...] = ()
    accuracy: float = 0.5
    """The least accuracy of a script that prints one: far above chance."""

    @property
    def published(self) -> str:
        """The script as its source has it."""
        return (FOLDER / "published" / f"{self.name}.py").read_text(encoding="utf-8")

    @property
    def keras_3(self) -> str:
        """The script that runs with Keras 3: with the changes that the page shows."""
        script, page = self.published, PAGE.read_text(encoding="utf-8")
        [difference] = re.findall(rf"/{self.name}\.py`:\n\n```diff\n(.*?)```", page, re.S)
        for hunk in map(str.splitlines, difference.split("@@\n")):
            before, after = (
                "".join(f"{line[1:]}\n" for line in hunk if line[:1] in side)
                for side in (" -", " +")
            )
            assert script.count(before) == 1, before
            script = script.replace(before, after)
        return script


ALL = (
    Tutorial(
        "mirrored_fit",
        "Distributed training with Keras",
        f"{_TENSORFLOW}/keras",
        "MirroredStrategy",
        {"Worker": 1},
    ),
    Tutorial(
        "mirrored_loop",
        "Custom training with tf.distribute.Strategy",
        f"{_TENSORFLOW}/custom_training",
        "MirroredStrategy",
        {"Worker": 1},
    ),
    Tutorial(
        "workers_fit",
        "Multi-worker training with Keras",
        f"{_TENSORFLOW}/multi_worker_with_keras",
        "MultiWorkerMirroredStrategy",
        WORKERS,
    ),
    Tutorial(
        "workers_loop",
        "Custom training loop with Keras and MultiWorkerMirroredStrategy",
        f"{_TENSORFLOW}/multi_worker_with_ctl",
        "MultiWorkerMirroredStrategy",
        WORKERS,
    ),
    Tutorial(
        "servers_fit",
        "Parameter server training: Model.fit",
        f"{_TENSORFLOW}/parameter_server_training",
        "ParameterServerStrategy",
        SERVERS,
    ),
    Tutorial(
        "servers_loop",
        "Parameter server training: custom training loop",
        f"{_TENSORFLOW}/parameter_server_training",
        "ParameterServerStrategy",
        SERVERS,
        accuracy=0.8,
    ),
    Tutorial(
        "kubeflow_keras",
        "Kubeflow's example of a TFJob with Keras",
        "https://github.com/kubeflow/training-operator/tree/v1.8.0/examples/tensorflow/distribution_strategy/keras-API",
        "MultiWorkerMirroredStrategy",
        WORKERS,
        ("--saved_model_dir=model", "--checkpoint_dir=checkpoints"),
    ),
)
