"""What ranks do together beside steps: share statistics, report metrics, look at weights, wait."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer.mesh import collectives, shape
from tfparallel_trainer.split.engine import member, ranks
from tfparallel_trainer.step import averages, metrics

_TOLD = 1024
"""How many bytes go to all ranks at once when one process tells the others something."""


class Upkeep:
    """For the ranks of this process."""

    def __init__(self, own: ranks.Ranks) -> None:
        self._ranks = own
        self._traced: dict[str, Any] = {}

    def barrier(self) -> None:
        """Return when every rank has come here."""
        self._call(
            collectives.Program.BARRIER,
            lambda: self._over_all(lambda own: [tf.ones((1,))])[0],
        )

    @property
    def leads(self) -> bool:
        """Whether this process has the first rank."""
        return self._ranks.members[0].rank == 0

    def tell(self, content: bytes) -> bytes:
        """Give what the process of the first rank gives to all; what others give is not used."""
        if self._ranks.divided.mesh.size == len(self._ranks.members):
            return content

        def run(given: tf.Tensor) -> tf.Tensor:
            return self._over_all(lambda own: [given if own.rank == 0 else tf.zeros_like(given)])[0]

        sent = np.array([len(content), *content], np.float64)
        found = np.zeros(0)
        while not len(found) or len(found) <= found[0]:
            part = np.zeros(_TOLD)
            if self.leads:
                rest = sent[len(found) : len(found) + _TOLD]
                part[: len(rest)] = rest
            taken = self._call(collectives.Program.TELL, run, tf.constant(part))
            found = np.append(found, taken.numpy())
        return bytes(found[1 : int(found[0]) + 1].astype(np.uint8))

    def finite(self) -> bool:
        """Whether the weights that are trained are finite numbers; the same on every process."""

        def failures(own: member.Member) -> list[tf.Tensor]:
            weights = [tf.convert_to_tensor(one) for one in own.trained.values()]
            fits = [tf.reduce_all(tf.math.is_finite(one)) for one in weights]
            return [tf.add_n([tf.zeros(()), *(tf.cast(~one, tf.float32) for one in fits)])]

        found = self._call(collectives.Program.LOOK, lambda: self._over_all(failures)[0])
        return float(found) == 0

    def report(self, numbers: Any, penalty: float) -> tuple[dict[str, float], tuple[Any, float]]:
        """Combine metrics and numbers over all ranks.

        Args:
            numbers: float64 [2, terms], this process's own.
            penalty: the regularisation of the weights that this process speaks for.

        Returns:
            The metrics, and the sums of the other two; the same on every process.
        """

        def run(given: tf.Tensor) -> list[tf.Tensor]:
            first = self._ranks.members[0]

            def parts(own: member.Member) -> list[tf.Tensor]:
                found = metrics.contributions(own.head)
                if not own.speaks:
                    found = [tf.zeros_like(one) for one in found]
                return [given if own is first else tf.zeros_like(given), *found]

            return self._over_all(parts)

        given = np.append(np.ravel(numbers), penalty)
        total, *states = self._call(collectives.Program.REPORT, run, tf.constant(given, tf.float64))
        sums = total.numpy()
        found = metrics.results(self._ranks.members[0].head, states)
        return found, (sums[:-1].reshape(2, -1), float(sums[-1]))

    def metrics(self) -> dict[str, float]:
        """The metrics over all ranks."""
        found, _ = self.report(np.zeros((2, len(self._ranks.members[0].head.terms))), 0.0)
        return found

    def share_statistics(self) -> None:
        """Give every rank the first one's of what is gathered along the data axis.

        Ranks gather statistics (of BatchNormalization) each for itself, and those of the first
        are saved; so those are what must be evaluated.
        """
        if self._ranks.divided.mesh.data > 1:
            self._call(collectives.Program.SHARE_STATISTICS, self._share_statistics)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Let the weights in the body be their averages, where the optimizer keeps such."""
        with contextlib.ExitStack() as stack:
            for own in self._ranks.members:
                weights = list(own.trained.values())
                stack.enter_context(averages.of(own.optimizer.given, weights, own.device))
            yield

    def _share_statistics(self) -> None:
        waiting: dict[tuple[int, ...], dict[int, list[tf.Tensor]]] = {}
        for own in self._ranks.members:
            with tf.device(own.device):
                mine = [tf.convert_to_tensor(one) for one in own.statistics.values()]
                given = mine if own.data == 0 else [tf.zeros_like(one) for one in mine]
            along = self._ranks.divided.mesh.group(own.rank, shape.Axis.DATA).ranks
            waiting.setdefault(along, {})[own.rank] = given
        members = {own.rank: own for own in self._ranks.members}
        for along, summands in waiting.items():
            for rank, found in self._ranks.between.total(along, summands).items():
                for variable, value in zip(members[rank].statistics.values(), found, strict=True):
                    variable.assign(value)

    def _over_all(self, parts: Callable[[member.Member], Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        """Add up what each rank of the mesh gives."""
        given = {}
        for own in self._ranks.members:
            with tf.device(own.device):
                given[own.rank] = parts(own)
        everyone = tuple(range(self._ranks.divided.mesh.size))
        return self._ranks.between.total(everyone, given)[self._ranks.members[0].rank]

    def _call(
        self, program: collectives.Program, run: Callable[..., Any], *arguments: tf.Tensor
    ) -> Any:
        if program.name not in self._traced:

            def traced(*given: tf.Tensor) -> Any:
                self._ranks.between.begin(program)
                return run(*given)

            # Programs share their code, and TensorFlow would take them for one that is retraced.
            function = tf.function(traced, autograph=False)
            self._traced[program.name] = function.get_concrete_function(*arguments)
        return self._traced[program.name](*arguments)
