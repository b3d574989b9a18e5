"""The ranks of this process together: what they share while they train and evaluate.

Outside of steps, they share statistics, report metrics, check weights, and wait for each other.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors, user
from tfparallel_trainer.comms import collectives, shape
from tfparallel_trainer.data import arrays, batch_division, nest, order
from tfparallel_trainer.engines.split import step_timing
from tfparallel_trainer.engines.split.execution import (
    loss_head,
    rank_model,
    rank_transport,
    stage_worker,
    state_exchange,
)
from tfparallel_trainer.engines.split.layers import elementwise
from tfparallel_trainer.engines.split.model import (
    operations,
    recording,
    step_effects,
    variable_identity,
)
from tfparallel_trainer.engines.split.pipeline.partition import Partition
from tfparallel_trainer.objective import checks, evaluate, metric_sums, synchrony

_BROADCAST_BYTES = 1024
"""Bytes of a broadcast by one process that are sent at once."""

_COMBINED = ((collectives.Program.COMPARE, 1 << 10), (collectives.Program.SAMPLE, 1 << 17))
"""Numbers (float64) that are added up over all ranks at once, and the program."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The ranks of this process, and their communication with all others."""

    partition: Partition
    local: Sequence[rank_model.RankModel]
    between: rank_transport.RankTransport
    division: loss_head.LossDivision
    timing: step_timing.StepTiming
    variants: dict[tuple[collectives.Program, stage_worker.Shares], int] = dataclasses.field(
        default_factory=dict
    )
    """The numbers of traces, which all processes count in the same order."""
    _traced: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Functions that are called outside of steps, by the names of their programs."""

    def begin(self, program: collectives.Program, shares: stage_worker.Shares) -> None:
        """Start tracing a program for a batch with this division.

        Too many different divisions raise a UserCodeError.
        """
        variant = self.variants.setdefault((program, shares), len(self.variants))
        if variant >= collectives.MAX_VARIANTS:
            raise errors.UserCodeError(
                f"The data functions give batches of more than {collectives.MAX_VARIANTS} sizes, "
                "and each needs a program of its own: give batches of one size.",
                function="training_data",
            )
        self.between.begin(program, variant)
        for rank in self.local:
            for group in (*rank.groups.values(), rank.head.data):
                group.begin(program, variant)

    def shares(self, examples: int) -> stage_worker.Shares:
        """Numbers of examples of each place along the data axis."""
        return tuple(len(part) for part in order.split(examples, self.partition.mesh.data))

    def parts(self, batch: batch_division.Batch, shares: stage_worker.Shares) -> dict[int, Any]:
        """This process's parts of a batch by their place along the data axis, as tensors.

        If their sizes are not those that other processes expect, it is a UserCodeError.
        """
        converted: dict[int, Any] = {}
        for rank, part in zip(self.local, batch.parts, strict=True):
            count = 0 if part is None else len(nest.leaves(part)[0])
            if count != shares[rank.data]:
                raise errors.UserCodeError(
                    f"A batch of {batch.examples} examples has {count} for place {rank.data} of "
                    f"the data axis, and {shares[rank.data]} are expected: give batches of one "
                    "size.",
                    function="training_data",
                )
            if part is not None and rank.data not in converted:
                converted[rank.data] = nest.convert(tf.convert_to_tensor, part)
        return converted

    def spec(self, spec: Any, shares: stage_worker.Shares) -> dict[int, Any]:
        """The structure of `parts`. A shape that depends on the data is a UserCodeError."""
        places = sorted({rank.data for rank in self.local if shares[rank.data]})
        return {
            data_index: tuple(
                nest.convert(functools.partial(_sized, shares[data_index], name), part)
                for name, part in zip(arrays.PARTS, spec, strict=True)
            )
            for data_index in places
        }

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self._call(
            collectives.Program.BARRIER, lambda: self._over_all(lambda rank: [tf.ones((1,))])[0]
        )

    @property
    def leads(self) -> bool:
        """Whether this process has the first rank."""
        return self.local[0].index == 0

    def broadcast(self, content: bytes) -> bytes:
        """Return the content that the process of the first rank passes, on all processes."""
        if self.partition.mesh.size == len(self.local):
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
                remaining_bytes = sent[len(received) : len(received) + _BROADCAST_BYTES]
                part[: len(remaining_bytes)] = remaining_bytes
            taken = self._call(collectives.Program.TELL, run, tf.constant(part))
            received = np.append(received, taken.numpy())
        return bytes(received[1 : int(received[0]) + 1].astype(np.uint8))

    def combine(self, values: Any) -> Any:
        """Add up values of all processes, float64 [n] of the same length; all get the sum."""
        if self.partition.mesh.size == len(self.local):
            return values

        def run(tensor: tf.Tensor) -> tf.Tensor:
            first = self.local[0]
            return self._over_all(
                lambda rank: [tensor if rank is first else tf.zeros_like(tensor)]
            )[0]

        program, size = next(
            program_and_size
            for program_and_size in _COMBINED
            if program_and_size[1] >= len(values) or program_and_size is _COMBINED[-1]
        )
        total = np.zeros(-(-len(values) // size) * size)
        total[: len(values)] = values
        for start in range(0, len(total), size):
            part = total[start : start + size]
            part[:] = self._call(program, run, tf.constant(part)).numpy()
        return total[: len(values)]

    def finite(self) -> bool:
        """Whether all trained weights are finite, the same on every process."""

        def failures(rank: rank_model.RankModel) -> list[tf.Tensor]:
            weights = [tf.convert_to_tensor(weight) for weight in rank.trained.values()]
            fits = [tf.reduce_all(tf.math.is_finite(is_finite)) for is_finite in weights]
            return [
                tf.add_n([tf.zeros(()), *(tf.cast(~is_finite, tf.float32) for is_finite in fits)])
            ]

        failed = self._call(collectives.Program.LOOK, lambda: self._over_all(failures)[0])
        return float(failed) == 0

    def report(self, numbers: Any, penalty: float) -> tuple[dict[str, float], tuple[Any, float]]:
        """The metrics over all ranks, and two sums over processes, which are the same on all.

        The summands of a process are `numbers`, float64 [2, terms], and the regularisation of the
        weights that it owns.
        """

        def run(tensor: tf.Tensor) -> list[tf.Tensor]:
            first = self.local[0]

            def parts(rank: rank_model.RankModel) -> list[tf.Tensor]:
                contributions = metric_sums.contributions(rank.head)
                if not rank.reports_metrics:
                    contributions = [tf.zeros_like(contribution) for contribution in contributions]
                return [tensor if rank is first else tf.zeros_like(tensor), *contributions]

            return self._over_all(parts)

        values = np.append(np.ravel(numbers), penalty)
        total, *states = self._call(
            collectives.Program.REPORT, run, tf.constant(values, tf.float64)
        )
        sums = total.numpy()
        results = metric_sums.results(self.local[0].head, states)
        return results, (sums[:-1].reshape(2, -1), float(sums[-1]))

    def metrics(self) -> dict[str, float]:
        """The metrics over all ranks."""
        results, _ = self.report(np.zeros((2, len(self.local[0].head.terms))), 0.0)
        return results

    def share_statistics(self) -> None:
        """Copy the first rank's statistics, which are saved, to the others along the data axis."""
        if self.partition.mesh.data > 1:
            self._call(collectives.Program.SHARE_STATISTICS, self._share_statistics)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Replace the weights by the averages that the optimizer keeps, in the body."""
        has_averages = False
        with contextlib.ExitStack() as stack:
            for rank in self.local:
                weights = list(rank.trained.values())
                has_averages |= stack.enter_context(
                    evaluate.averaged_weights(
                        rank.optimizer.keras_optimizer, weights, rank.device, rank.updated
                    )
                )
            if has_averages and any(rank.state for rank in self.local):
                self._call(collectives.Program.SHARE_AVERAGES, self._share_slices)
            yield

    def _share_statistics(self) -> None:
        summands_by_group: dict[tuple[int, ...], dict[int, list[tf.Tensor]]] = {}
        for rank in self.local:
            with tf.device(rank.device):
                values = [tf.convert_to_tensor(statistic) for statistic in rank.statistics.values()]
                if rank.data:
                    values = [tf.zeros_like(statistic) for statistic in values]
            along = self.partition.mesh.group(rank.index, shape.Axis.DATA).ranks
            summands_by_group.setdefault(along, {})[rank.index] = values
        by_index = {rank.index: rank for rank in self.local}
        for along, summands in summands_by_group.items():
            for index, totals in self.between.total(along, summands).items():
                statistics = by_index[index].statistics.values()
                for variable, value in zip(statistics, totals, strict=True):
                    variable.assign(value)

    def _share_slices(self) -> None:
        state_exchange.share_slices(self.between, self.local, lambda rank: tf.device(rank.device))

    def _over_all(
        self, parts: Callable[[rank_model.RankModel], Sequence[tf.Tensor]]
    ) -> list[tf.Tensor]:
        """Add up parts of all ranks of the mesh."""
        summands = {}
        for rank in self.local:
            with tf.device(rank.device):
                summands[rank.index] = parts(rank)
        everyone = tuple(range(self.partition.mesh.size))
        return self.between.total(everyone, summands)[self.local[0].index]

    def _call(
        self, program: collectives.Program, run: Callable[..., Any], *arguments: tf.Tensor
    ) -> Any:
        if program.name not in self._traced:

            def traced(*tensors: tf.Tensor) -> Any:
                self.between.begin(program)
                return run(*tensors)

            # A wrapper for each program: TensorFlow would take programs that share their code for
            # one that is retraced.
            function = tf.function(traced, autograph=False)
            self._traced[program.name] = function.get_concrete_function(*arguments)
        return self._traced[program.name](*arguments)


def build(
    module: user.Module,
    skeleton: Any,
    partition: Partition,
    places: Mapping[int, str],
    examples: batch_division.BatchSource,
) -> Ranks:
    """Build this process's ranks, on their devices.

    If the user's functions raise, or return what cannot be trained, it is a UserCodeError.
    """
    sample = examples.sample()
    _check(partition)
    local = [
        rank_model.build(module, skeleton, partition, rank, device, sample)
        for rank, device in places.items()
    ]
    elementwise.check_optimizer(
        skeleton.optimizer, partition.model.variables, partition.plan.variables
    )
    # A user's layer may add to the loss in its call, which no attribute shows.
    adds = any(
        getattr(layer, "activity_regularizer", None) is not None
        or not operations.is_of_keras(layer)
        for layer in checks.layers(skeleton)
    )
    if partition.mesh.stage > 1:
        variable_identity.check_separable(skeleton.optimizer, skeleton.trainable_variables)
    with loss_head.computing_loss(module, partition.model):
        loss_division = loss_head.division_of(
            local[0].head, partition.model, examples.spec, adds=adds
        )
    variables = partition.model.variables.items()
    trained = {key: variable for key, variable in variables if variable.trainable}
    settles = loss_division is loss_head.LossDivision.BETWEEN
    adds_up = bool(synchrony.among(node.calls for node in partition.model.nodes))
    divided = dataclasses.replace(
        partition,
        shards_optimizer=rank_model.shares_state(partition, skeleton.optimizer, trained),
        settles=settles,
        adds_up=adds_up,
        effects=_effects(module, local[0], partition, sample),
    )
    return Ranks(
        partition=divided,
        local=local,
        between=rank_transport.RankTransport(partition, places),
        division=loss_division,
        timing=step_timing.StepTiming(partition.mesh.stage),
    )


def _effects(
    module: user.Module, rank: rank_model.RankModel, partition: Partition, sample: Any
) -> step_effects.Effects:
    """The effects of a step on the model.

    An assignment to what two stages have is a UserCodeError.
    """
    model = partition.model
    outputs = loss_head.outputs_with_gradient(module, rank.head, model, sample)
    is_divided = partition.mesh.data * partition.microbatches > 1
    result = step_effects.find_effects(model, outputs, is_divided=is_divided)
    for stage in partition.stages:
        for key, owner in stage.borrowed:
            if key in result.assigned:
                raise _shared(model.variables[key], "assigned", owner, stage.index)
    return result


def _check(partition: Partition) -> None:
    """Refuse (UserCodeError) a layer that gathers statistics and that two stages call."""
    gathered = recording.gathered(partition.model)
    for stage in partition.stages:
        for key, owner in stage.borrowed:
            if key in gathered:
                raise _shared(partition.model.variables[key], "gathered", owner, stage.index)


def _shared(variable: Any, verb: str, owner: int, borrower: int) -> errors.UserCodeError:
    return errors.UserCodeError(
        f"{variable.path} is {verb} by a layer that stages {owner} and {borrower} both call, and "
        "there can be one copy of it only. Use a layer for each call, or fewer stages."
    )


def _sized(examples: int, name: str, leaf: tf.TensorSpec) -> tf.TensorSpec:
    if None in leaf.shape[1:]:
        raise errors.UserCodeError(
            f"The data functions give examples with {name} of the shape {tuple(leaf.shape[1:])}, "
            "and what is unknown there would be the size of messages between stages. Give all "
            "examples one shape (pad them).",
            function="training_data",
        )
    return tf.TensorSpec((examples, *leaf.shape[1:]), leaf.dtype)
