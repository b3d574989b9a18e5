"""Evaluation on all replicas of a strategy."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from tfparallel_trainer.data import feed
from tfparallel_trainer.engines.strategy import steps
from tfparallel_trainer.objective import averages, evaluate, replica


class Evaluation:
    """Evaluates the replicas of this process together with those of its peers."""

    def __init__(self, replica: replica.Replica, traced: steps.Steps, spec: Any) -> None:
        """Args: spec: structure of a part of a batch, as tf.TensorSpec [None, …]."""
        self._replica = replica
        self._steps = traced
        self._spec = spec

    def run(self, batches: Iterable[feed.Batch]) -> dict[str, float]:
        """Give loss and metrics over all examples; the same on every process."""
        self._steps.share_statistics()
        totals = np.zeros((2, len(self._replica.terms)))
        evaluate.reset_metrics([self._replica])
        with averages.used([self._replica]):
            for batch in batches:
                totals += self._steps.sums(batch, self._spec)
            results = {**evaluate.losses(self._replica, totals), **self._steps.report()}
        evaluate.reset_metrics([self._replica])
        return results
