"""The ranks of this process together: what they share while they train and evaluate."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer import errors, user
from tfparallel_trainer.comms import collectives
from tfparallel_trainer.data import batching, nest, order
from tfparallel_trainer.engines.split import watched
from tfparallel_trainer.engines.split.engine import exchange, head, rank_model, stage_worker
from tfparallel_trainer.engines.split.layers import elementwise
from tfparallel_trainer.engines.split.model import recording
from tfparallel_trainer.engines.split.pipeline import partition
from tfparallel_trainer.objective import checks, synchrony


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The ranks of this process and how they meet all others."""

    partition: partition.Partition
    local: Sequence[rank_model.Rank]
    between: exchange.Exchange
    division: head.Division
    watched: watched.Watched
    variants: dict[tuple[collectives.Program, stage_worker.Shares], int] = dataclasses.field(
        default_factory=dict
    )
    """Numbers of traces, in the order in which all processes make them."""

    def begin(self, program: collectives.Program, shares: stage_worker.Shares) -> None:
        """Start tracing a program for a batch that is divided in this way.

        Raises:
            UserCodeError: there were too many ways.
        """
        variant = self.variants.setdefault((program, shares), len(self.variants))
        if variant >= collectives.MAX_VARIANTS:
            raise errors.UserCodeError(
                f"The data functions give batches of more than {collectives.MAX_VARIANTS} sizes, "
                "and each needs a program of its own: give batches of one size."
            )
        self.between.begin(program, variant)
        for rank in self.local:
            for group in (*rank.groups.values(), rank.head.data):
                group.begin(program, variant)

    def shares(self, examples: int) -> stage_worker.Shares:
        """How examples are divided over the data axis."""
        return tuple(len(part) for part in order.split(examples, self.partition.mesh.data))

    def parts(self, batch: batching.Batch, shares: stage_worker.Shares) -> dict[int, Any]:
        """This process's parts of a batch by their place along the data axis, as tensors.

        Raises:
            UserCodeError: they are not divided as other processes think.
        """
        converted: dict[int, Any] = {}
        for rank, part in zip(self.local, batch.parts, strict=True):
            count = 0 if part is None else len(nest.leaves(part)[0])
            if count != shares[rank.data]:
                raise errors.UserCodeError(
                    f"A batch of {batch.examples} examples has {count} for place {rank.data} of "
                    f"the data axis, and {shares[rank.data]} are expected: give batches of one "
                    "size."
                )
            if part is not None and rank.data not in converted:
                converted[rank.data] = nest.convert(tf.convert_to_tensor, part)
        return converted

    def spec(self, spec: Any, shares: stage_worker.Shares) -> dict[int, Any]:
        """The structure of what `parts` gives.

        Raises:
            UserCodeError: an example has a shape that only the data tells.
        """
        places = sorted({rank.data for rank in self.local if shares[rank.data]})
        return {place: _sized(spec, shares[place]) for place in places}


def build(
    module: user.Module,
    skeleton: Any,
    partition: partition.Partition,
    places: Mapping[int, str],
    examples: batching.Source,
) -> Ranks:
    """Build what the ranks of this process have of a model, by rank on their devices.

    Raises:
        UserCodeError: the user's functions raise, or make what cannot be trained.
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
    adds = any(
        getattr(layer, "activity_regularizer", None) is not None
        for layer in checks.layers(skeleton)
    )
    known = head.division_of(local[0].head, partition.model, examples.spec, adds=adds)
    settles = known is head.Division.BETWEEN
    adds_up = bool(synchrony.among(node.calls for node in partition.model.nodes))
    return Ranks(
        partition=dataclasses.replace(partition, settles=settles, adds_up=adds_up),
        local=local,
        between=exchange.Exchange(partition, places),
        division=known,
        watched=watched.Watched(partition.mesh.stage),
    )


def _check(partition: partition.Partition) -> None:
    """Raise a UserCodeError if two stages call a layer that gathers statistics."""
    gathered = recording.gathered(partition.model)
    for stage in partition.stages:
        for key, owner in stage.borrowed:
            if key in gathered:
                variable = partition.model.variables[key]
                raise errors.UserCodeError(
                    f"{variable.path} is gathered by a layer that stages {owner} and {stage.index} "
                    "both call, and there can be one copy of it only. Use a layer for each call, "
                    "or fewer stages."
                )


def _sized(spec: Any, examples: int) -> Any:
    def sized(leaf: tf.TensorSpec) -> tf.TensorSpec:
        if None in leaf.shape[1:]:
            raise errors.UserCodeError(
                f"The data functions give examples of the shape {tuple(leaf.shape[1:])}, and what "
                "is unknown there would be the size of messages between stages. Give all examples "
                "one shape (pad them)."
            )
        return tf.TensorSpec((examples, *leaf.shape[1:]), leaf.dtype)

    return nest.convert(sized, spec)
