"""Progress of an epoch as Keras' fit shows it: a bar on a terminal, a line in a log."""

import sys

import keras

from tfparallel_trainer.loop import observer

BAR, LINE = 1, 2


def chosen(verbose: str | int) -> int:
    """What `verbose` means: "auto" is a bar on a terminal and a line an epoch elsewhere."""
    if verbose == "auto":
        return BAR if sys.stdout.isatty() else LINE
    return int(verbose)


class Bar:
    """Shows epochs; `verbose` 0 shows nothing."""

    def __init__(self, verbose: int, epochs: int | None, steps: int | None) -> None:
        self._verbose = verbose
        self._epochs = epochs
        self._steps = steps
        self._batch = 0
        self._bar = keras.utils.Progbar(steps, verbose=verbose, unit_name="step")

    def begin(self, epoch: int) -> None:
        """An epoch begins."""
        self._bar = keras.utils.Progbar(self._steps, verbose=self._verbose, unit_name="step")
        self._batch = 0
        if self._verbose:
            print(f"Epoch {epoch + 1}/{self._epochs}", flush=True)

    def show(self, batch: int, logs: observer.Logs) -> None:
        """So many batches of it are done."""
        self._batch = batch
        if self._verbose == BAR and batch != self._steps:
            self._bar.update(batch, sorted(logs.items()), finalize=False)

    def end(self, logs: observer.Logs | None) -> None:
        """It has ended with these logs."""
        if self._verbose:
            self._bar.target = self._batch
            self._bar.update(self._batch, sorted((logs or {}).items()), finalize=True)
