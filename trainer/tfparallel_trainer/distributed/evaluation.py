"""Evaluation on all replicas of a strategy."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from tfparallel_trainer.data import feed
from tfparallel_trainer.distributed import steps
from tfparallel_trainer.step import averages, evaluate, replica


class Evaluation:
    """Evaluates the replicas of this process together with those of its peers."""

    def __init__(self, own: replica.Replica, traced: steps.Steps, spec: Any) -> None:
        """Args: spec: structure of a part of a batch, as tf.TensorSpec [None, …]."""
        self._own = own
        self._steps = traced
        self._spec = spec

    def run(self, batches: Iterable[feed.Batch]) -> dict[str, float]:
        """Give loss and metrics over all examples; the same on every process."""
        self._steps.share_statistics()
        totals = np.zeros((2, len(self._own.terms)))
        evaluate.reset_metrics([self._own])
        with averages.used([self._own]):
            for batch in batches:
                totals += self._steps.sums(batch, self._spec)
            found = {**evaluate.losses(self._own, totals), **self._steps.report()}
        evaluate.reset_metrics([self._own])
        return found
