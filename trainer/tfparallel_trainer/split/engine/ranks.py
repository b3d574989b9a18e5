"""The ranks of this process together: what they share while they train and evaluate."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer import errors, user
from tfparallel_trainer.data import feed, nest, order
from tfparallel_trainer.mesh import collectives
from tfparallel_trainer.split import watched
from tfparallel_trainer.split.engine import actors, exchange, member
from tfparallel_trainer.split.layers import whole
from tfparallel_trainer.split.model import recording
from tfparallel_trainer.split.pipeline import division, partition
from tfparallel_trainer.step import checks, synchrony

Shares = tuple[int, ...]
"""How many examples each place along the data axis has."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The ranks of this process and how they meet all others."""

    divided: partition.Partition
    members: Sequence[member.Member]
    between: exchange.Exchange
    division: division.Division
    """When the denominators of the loss are known."""
    watched: watched.Watched
    """The steps made lately."""
    variants: dict[tuple[collectives.Program, Shares], int] = dataclasses.field(
        default_factory=dict
    )
    """Numbers of traces, in the order in which all processes make them."""

    def begin(self, program: collectives.Program, shares: Shares) -> None:
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
        for own in self.members:
            for group in (*own.groups.values(), own.head.data):
                group.begin(program, variant)

    def shares(self, examples: int) -> Shares:
        """How examples are divided over the data axis."""
        return tuple(len(part) for part in order.split(examples, self.divided.mesh.data))

    def share(
        self, own: member.Member, shares: Shares, parts: Mapping[int, Any], step: tf.Tensor
    ) -> actors.Share:
        """What one of the ranks works on."""
        return actors.Share(
            part=parts.get(own.data),
            examples=shares[own.data],
            microbatches=self.divided.counts(shares)[own.data],
            total=sum(shares),
            step=step,
        )

    def parts(self, batch: feed.Batch, shares: Shares) -> dict[int, Any]:
        """This process's parts of a batch by their place along the data axis, as tensors.

        Raises:
            UserCodeError: they are not divided as other processes think.
        """
        found: dict[int, Any] = {}
        for own, part in zip(self.members, batch.parts, strict=True):
            count = 0 if part is None else len(nest.leaves(part)[0])
            if count != shares[own.data]:
                raise errors.UserCodeError(
                    f"A batch of {batch.examples} examples has {count} for place {own.data} of the "
                    f"data axis, and {shares[own.data]} are expected: give batches of one size."
                )
            if part is not None and own.data not in found:
                found[own.data] = nest.convert(tf.convert_to_tensor, part)
        return found

    def spec(self, spec: Any, shares: Shares) -> dict[int, Any]:
        """The structure of what `parts` gives.

        Raises:
            UserCodeError: an example has a shape that only the data tells.
        """
        wanted = sorted({own.data for own in self.members if shares[own.data]})
        return {place: _sized(spec, shares[place]) for place in wanted}


def build(
    module: user.Module,
    skeleton: Any,
    divided: partition.Partition,
    places: Mapping[int, str],
    examples: feed.Feed,
) -> Ranks:
    """Build what the ranks of this process have of a model.

    Args:
        module: the user's functions.
        skeleton: what `build_model` gave, built without its weights.
        divided: how its graph is divided.
        places: the devices of this process, by their ranks.
        examples: those to train on.

    Raises:
        UserCodeError: the user's functions raise, or make what cannot be trained.
    """
    sample = examples.sample()
    _check(divided)
    members = [
        member.build(module, skeleton, divided, rank, device, sample)
        for rank, device in places.items()
    ]
    whole.check_optimizer(skeleton.optimizer, divided.model.variables, divided.plan.variables)
    adds = any(
        getattr(layer, "activity_regularizer", None) is not None
        for layer in checks.layers(skeleton)
    )
    known = division.of(members[0].head, divided.model, examples.spec, adds=adds)
    settles = known is division.Division.BETWEEN
    adds_up = bool(synchrony.among(node.calls for node in divided.model.nodes))
    return Ranks(
        divided=dataclasses.replace(divided, settles=settles, adds_up=adds_up),
        members=members,
        between=exchange.Exchange(divided, places),
        division=known,
        watched=watched.Watched(divided.mesh.stage),
    )


def _check(divided: partition.Partition) -> None:
    """Refuse what two stages cannot share.

    Raises:
        UserCodeError: a layer that gathers statistics is called in two stages.
    """
    gathered = recording.gathered(divided.model)
    for stage in divided.stages:
        for key, owner in stage.borrowed:
            if key in gathered:
                variable = divided.model.variables[key]
                raise errors.UserCodeError(
                    f"{variable.path} is gathered by a layer that stages {owner} and {stage.index} "
                    "both call, and there can be one copy of it only: use a layer for each call, "
                    "or fewer stages."
                )


def _sized(spec: Any, examples: int) -> Any:
    def sized(leaf: tf.TensorSpec) -> tf.TensorSpec:
        if None in leaf.shape[1:]:
            raise errors.UserCodeError(
                f"The data functions give examples of the shape {tuple(leaf.shape[1:])}, and what "
                "is unknown there would be the size of messages between stages: give all examples "
                "one shape (pad them)."
            )
        return tf.TensorSpec((examples, *leaf.shape[1:]), leaf.dtype)

    return nest.convert(sized, spec)
