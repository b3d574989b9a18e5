"""What a competitor knows of its run, and what it reports.

The harness gives a folder: `weights.npz` has the weights at the beginning, in the order of Keras,
and `batches.npz` the examples in the order in which the trainer takes them, epoch by epoch.
"""

import dataclasses
import os
import pathlib
import signal
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np

from benchmarks.peers import workloads
from benchmarks.scripts import events

EPOCHS = 3
"""The first one warms up."""


@dataclasses.dataclass(frozen=True, slots=True)
class Contest:
    """The model and the data of a run, and which of its processes this one is."""

    name: str
    rank: int
    processes: int
    addresses: tuple[str, ...]
    """Of the processes, host and port."""
    folder: pathlib.Path

    @property
    def reports(self) -> bool:
        """Whether this is the process that reports, unless a script says otherwise."""
        return self.rank == 0

    @property
    def model(self) -> workloads.Model:
        """What is trained."""
        return workloads.MODELS[self.name]

    def weights(self) -> list[np.ndarray]:
        """The weights at the beginning."""
        with np.load(self.folder / "weights.npz") as stored:
            return [stored[key] for key in stored.files]

    def examples(self) -> tuple[np.ndarray, np.ndarray]:
        """The examples of all epochs in order, x and y."""
        with np.load(self.folder / "batches.npz") as stored:
            return stored["x"], stored["y"]

    def epochs(self, *, shared: bool = True) -> Iterator[list[tuple[np.ndarray, np.ndarray]]]:
        """Batches of each epoch: this process's equal share of each, or all of it."""
        x, y = self.examples()
        batch = self.model.batch
        size = batch // self.processes if shared else batch
        first = self.rank * size if shared else 0
        for epoch in range(EPOCHS):
            starts = range(epoch * self.model.steps, (epoch + 1) * self.model.steps)
            rows = [slice(step * batch + first, step * batch + first + size) for step in starts]
            yield [(x[part], y[part]) for part in rows]


def contest() -> Contest:
    """Read this process's part from the environment."""
    addresses = tuple(os.environ["CONTEST_ADDRESSES"].split(","))
    return Contest(
        os.environ["CONTEST_MODEL"],
        int(os.environ["CONTEST_RANK"]),
        len(addresses),
        addresses,
        pathlib.Path(os.environ["CONTEST_FOLDER"]),
    )


def report_first_step() -> None:
    """Report that the first step has ended."""
    events.write("first")


def report_epoch(epoch: int, loss: float) -> None:
    """Report the end of an epoch from 1, and the mean of its losses."""
    events.write("epoch", epoch=epoch, loss=loss)


def fit_callbacks(contest: Contest, base: type) -> list[Any]:
    """Callbacks of `fit` that report, from the base class of one's Keras; none elsewhere."""

    class Reporter(base):
        has_begun = False

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if not self.has_begun:
                self.has_begun = True
                report_first_step()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            report_epoch(epoch + 1, float(logs["loss"]))

    return [Reporter()] if contest.reports else []


def leave(*, reports: bool) -> NoReturn:
    """Exit, or wait until the harness ends this process, once the one that reports has exited.

    An exit would cut off messages that others still read.
    """
    if reports:
        os._exit(0)
    while True:
        signal.pause()
