"""Records each step on its own, for those who compare runs: an engine around another one.

The train log tells how an epoch goes, about once a second. This one has a line for each step, and
for where epochs and evaluations begin and end, so that speed can be told without them.
"""

import json
import math
import pathlib
import time
from collections.abc import Sequence

from tfparallel_trainer.contract import outputs
from tfparallel_trainer.data import batching
from tfparallel_trainer.engines import engine
from tfparallel_trainer.objective import replica


class Recorded:
    """An `engine.Engine` that does what another does, and writes a line for each of its steps."""

    def __init__(
        self, inner: engine.Engine, replica: replica.Replica, output_dir: pathlib.Path
    ) -> None:
        """Args: replica: a replica of the model, for its size."""
        self._inner = inner
        path = output_dir / outputs.STEP_LOG
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lines = path.open("a", encoding="utf-8", buffering=1)
        weights = replica.model.trainable_variables
        size = sum(variable.value.dtype.size * math.prod(variable.shape) for variable in weights)
        self._write(outputs.StepEvent.MODEL, variables=len(weights), bytes=size)

    @property
    def pending(self) -> int:
        """As the other engine's."""
        return self._inner.pending

    def reset(self) -> None:
        """An epoch begins."""
        self._inner.reset()
        self._write(outputs.StepEvent.EPOCH)

    def give(
        self, step: int, batch: batching.Batch, asked: frozenset[engine.Flag]
    ) -> tuple[Sequence[engine.StepResult], frozenset[engine.Flag]]:
        """Give the batch, and record the steps that are made."""
        results, flags = self._inner.give(step, batch, asked)
        self._record(results)
        return results, flags

    def settle(self) -> Sequence[engine.StepResult]:
        """Wait until no step is pending, and record those that are made."""
        results = self._inner.settle()
        self._record(results)
        return results

    def metrics(self) -> dict[str, float]:
        """As the other engine's."""
        return self._inner.metrics()

    def evaluate(self, watched: engine.Watched) -> dict[str, float] | None:
        """Evaluate, and record what came of it."""
        metrics = self._inner.evaluate(watched)
        if metrics is not None:
            values = {name: outputs.number(value) for name, value in metrics.items()}
            self._write(outputs.StepEvent.EVALUATION, metrics=values)
        return metrics

    def weights_are_finite(self) -> bool:
        """As the other engine's."""
        return self._inner.weights_are_finite()

    def barrier(self) -> None:
        """As the other engine's."""
        self._inner.barrier()

    def _record(self, results: Sequence[engine.StepResult]) -> None:
        for one in results:
            facts = {} if one.staleness is None else {"staleness": one.staleness}
            self._write(
                outputs.StepEvent.STEP,
                examples=one.examples,
                loss=outputs.number(one.losses["loss"]),
                **facts,
            )

    def _write(self, event: outputs.StepEvent, **facts: object) -> None:
        record = {"time": round(time.time(), 6), "event": event.value, **facts}
        self._lines.write(json.dumps(record) + "\n")
