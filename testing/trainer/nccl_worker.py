"""One process of several that decide whether their GPUs can use NCCL; says what they decide."""

import os

from tfparallel_trainer import tasks
from tfparallel_trainer.comms import devices, nccl, rendezvous
from tfparallel_trainer.contract import environment

DEVICES = 2


def main() -> None:
    """Decide for parts of the CPU in place of GPUs."""
    cluster = tasks.parse(os.environ[environment.TF_CONFIG])
    devices.prepare(DEVICES, alone=False)
    cluster_handle = rendezvous.join(cluster, rendezvous.meet(cluster, 60.0, print))
    names = devices.names(cluster, DEVICES)
    for _ in range(2):  # a script may train more than once
        print(nccl.find_obstacle(cluster, names), flush=True)
    del cluster_handle


if __name__ == "__main__":
    main()
