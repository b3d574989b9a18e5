"""What ranks do together outside of steps: share statistics, report metrics, read weights, wait."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer.comms import collectives, shape
from tfparallel_trainer.engines.split.engine import rank_model, ranks
from tfparallel_trainer.objective import evaluate, metrics

_BROADCAST_BYTES = 1024
"""How many bytes go to all ranks at once when one process tells the others something."""


class Coordinator:
    """For the ranks of this process."""

    def __init__(self, local_ranks: ranks.Ranks) -> None:
        self._ranks = local_ranks
        self._traced: dict[str, Any] = {}

    def barrier(self) -> None:
        """Return when every rank has come here."""
        self._call(
            collectives.Program.BARRIER,
            lambda: self._over_all(lambda rank: [tf.ones((1,))])[0],
        )

    @property
    def leads(self) -> bool:
        """Whether this process has the first rank."""
        return self._ranks.local[0].index == 0

    def tell(self, content: bytes) -> bytes:
        """Give what the process of the first rank gives to all; what others give is not used."""
        if self._ranks.partition.mesh.size == len(self._ranks.local):
            return content

        def run(tensor: tf.Tensor) -> tf.Tensor:
            return self._over_all(
                lambda rank: [tensor if rank.index == 0 else tf.zeros_like(tensor)]
            )[0]

        sent = np.array([len(content), *content], np.float64)
        received = np.zeros(0)
        while not len(received) or len(received) <= received[0]:
            part = np.zeros(_BROADCAST_BYTES)
            if self.leads:
                rest = sent[len(received) : len(received) + _BROADCAST_BYTES]
                part[: len(rest)] = rest
            taken = self._call(collectives.Program.TELL, run, tf.constant(part))
            received = np.append(received, taken.numpy())
        return bytes(received[1 : int(received[0]) + 1].astype(np.uint8))

    def finite(self) -> bool:
        """Whether the weights that are trained are finite numbers; the same on every process."""

        def failures(rank: rank_model.Rank) -> list[tf.Tensor]:
            weights = [tf.convert_to_tensor(one) for one in rank.trained.values()]
            fits = [tf.reduce_all(tf.math.is_finite(one)) for one in weights]
            return [tf.add_n([tf.zeros(()), *(tf.cast(~one, tf.float32) for one in fits)])]

        failed = self._call(collectives.Program.LOOK, lambda: self._over_all(failures)[0])
        return float(failed) == 0

    def report(self, numbers: Any, penalty: float) -> tuple[dict[str, float], tuple[Any, float]]:
        """Combine metrics and numbers over all ranks.

        Args:
            numbers: float64 [2, terms], this process's own.
            penalty: the regularisation of the weights that this process speaks for.

        Returns:
            The metrics, and the sums of the other two; the same on every process.
        """

        def run(tensor: tf.Tensor) -> list[tf.Tensor]:
            first = self._ranks.local[0]

            def parts(rank: rank_model.Rank) -> list[tf.Tensor]:
                contributions = metrics.contributions(rank.head)
                if not rank.speaks:
                    contributions = [tf.zeros_like(one) for one in contributions]
                return [tensor if rank is first else tf.zeros_like(tensor), *contributions]

            return self._over_all(parts)

        values = np.append(np.ravel(numbers), penalty)
        total, *states = self._call(
            collectives.Program.REPORT, run, tf.constant(values, tf.float64)
        )
        sums = total.numpy()
        results = metrics.results(self._ranks.local[0].head, states)
        return results, (sums[:-1].reshape(2, -1), float(sums[-1]))

    def metrics(self) -> dict[str, float]:
        """The metrics over all ranks."""
        results, _ = self.report(np.zeros((2, len(self._ranks.local[0].head.terms))), 0.0)
        return results

    def share_statistics(self) -> None:
        """Give every rank the first one's of what is gathered along the data axis.

        Ranks gather statistics (of BatchNormalization) each for itself, and those of the first
        are saved; so those are what must be evaluated.
        """
        if self._ranks.partition.mesh.data > 1:
            self._call(collectives.Program.SHARE_STATISTICS, self._share_statistics)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Let the weights in the body be their averages, where the optimizer keeps such."""
        with contextlib.ExitStack() as stack:
            for rank in self._ranks.local:
                weights = list(rank.trained.values())
                stack.enter_context(
                    evaluate.averaged_weights(rank.optimizer.keras_optimizer, weights, rank.device)
                )
            yield

    def _share_statistics(self) -> None:
        waiting: dict[tuple[int, ...], dict[int, list[tf.Tensor]]] = {}
        for rank in self._ranks.local:
            with tf.device(rank.device):
                values = [tf.convert_to_tensor(one) for one in rank.statistics.values()]
                if rank.data:
                    values = [tf.zeros_like(one) for one in values]
            along = self._ranks.partition.mesh.group(rank.index, shape.Axis.DATA).ranks
            waiting.setdefault(along, {})[rank.index] = values
        by_index = {rank.index: rank for rank in self._ranks.local}
        for along, summands in waiting.items():
            for index, totals in self._ranks.between.total(along, summands).items():
                statistics = by_index[index].statistics.values()
                for variable, value in zip(statistics, totals, strict=True):
                    variable.assign(value)

    def _over_all(self, parts: Callable[[rank_model.Rank], Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        """Add up what each rank of the mesh gives."""
        summands = {}
        for rank in self._ranks.local:
            with tf.device(rank.device):
                summands[rank.index] = parts(rank)
        everyone = tuple(range(self._ranks.partition.mesh.size))
        return self._ranks.between.total(everyone, summands)[self._ranks.local[0].index]

    def _call(
        self, program: collectives.Program, run: Callable[..., Any], *arguments: tf.Tensor
    ) -> Any:
        if program.name not in self._traced:

            def traced(*tensors: tf.Tensor) -> Any:
                self._ranks.between.begin(program)
                return run(*tensors)

            # Programs share their code, and TensorFlow would take them for one that is retraced.
            function = tf.function(traced, autograph=False)
            self._traced[program.name] = function.get_concrete_function(*arguments)
        return self._traced[program.name](*arguments)
