"""What a step depends on besides model and devices, and all that could be chosen of it. Pure."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping

from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.contract import job_file, plan
from tfparallel_trainer.engines.split.pipeline import schedule

ORDERS: Mapping[job_file.PipelineSchedule, schedule.Schedule] = {
    job_file.PipelineSchedule.ONE_FORWARD_ONE_BACKWARD: schedule.one_forward_one_backward,
    job_file.PipelineSchedule.GPIPE: schedule.gpipe,
}

_MOST_MICROBATCHES = 64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One choice."""

    mesh: shape.MeshShape
    microbatches: int
    order: job_file.PipelineSchedule
    batch: int
    """Examples of a step over all replicas."""
    shards_optimizer: bool = False
    """Whether each rank along the data axis has the optimizer's slots of its slices only."""
    recomputes: bool = False
    """Whether backward passes compute activations again."""

    @property
    def replicas_of_slots(self) -> int:
        """Among how many ranks the slots of a weight are divided."""
        return self.mesh.data if self.shards_optimizer else 1

    def __str__(self) -> str:
        return describe(
            self.axes,
            self.microbatches,
            shards_optimizer=self.shards_optimizer,
            recomputes=self.recomputes,
        )

    @property
    def axes(self) -> plan.Axes:
        """The mesh as a plan tells it."""
        return plan.Axes(**{axis.value: self.mesh.degree(axis) for axis in shape.Axis})

    @property
    def examples(self) -> int:
        """Examples of a microbatch on one replica."""
        return self.batch // (self.mesh.data * self.microbatches)

    def held_microbatches(self, stage: int) -> int:
        """The most microbatches whose activations a stage holds."""
        order = ORDERS[self.order]
        return schedule.peak_microbatches(order(self.mesh.stage, self.microbatches, stage))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """What a plan must keep to."""

    mesh: Mapping[str, int] | None = None
    """Degrees by axis, 1 if not given; -1 takes the remaining ranks. None: all are chosen."""
    microbatches: int | None = None
    """None: chosen."""
    order: job_file.PipelineSchedule = job_file.PipelineSchedule.ONE_FORWARD_ONE_BACKWARD
    batch: int = 32
    """Examples of a step over all replicas."""
    shards_optimizer: bool | None = False
    """Whether ranks along the data axis share the optimizer's slots; None: chosen."""
    recomputes: bool | None = False
    """Whether backward passes compute activations again; None: chosen."""


def every(constraints: Constraints, ranks: int) -> list[Setting]:
    """All settings that a number of ranks allows; none at all is a BadConfigurationError.

    Where `variants` may hold less memory, they are those that do nothing for it.
    """
    fixed = None if constraints.mesh is None else _mesh(constraints.mesh, ranks)
    matching = [
        Setting(
            mesh=mesh,
            microbatches=count,
            order=constraints.order,
            batch=constraints.batch,
            shards_optimizer=bool(constraints.shards_optimizer) and mesh.data > 1,
            recomputes=bool(constraints.recomputes),
        )
        for mesh in (_meshes(ranks) if fixed is None else (fixed,))
        for count in _microbatches(mesh, constraints)
    ]
    if matching:
        return matching
    parts = 1 if fixed is None else fixed.data
    counts = parts * (constraints.microbatches or 1)
    raise errors.BadConfigurationError(
        f"The batch of {constraints.batch} examples is not divisible by mesh.data {parts} x "
        f"mesh.microbatches {constraints.microbatches or 1}: give a multiple of {counts}."
    )


def variants(setting: Setting, constraints: Constraints, shares_slots: bool) -> tuple[Setting, ...]:
    """A setting with what it may do to hold less, the cheapest first: nothing.

    Args:
        shares_slots: whether ranks along the data axis can share the optimizer's slots.
    """
    may_share = constraints.shards_optimizer is None and shares_slots and setting.mesh.data > 1
    return tuple(
        dataclasses.replace(setting, shards_optimizer=shards_optimizer, recomputes=recomputes)
        for recomputes in _values(setting.recomputes, may_vary=constraints.recomputes is None)
        for shards_optimizer in _values(setting.shards_optimizer, may_vary=may_share)
    )


def describe(
    axes: plan.Axes, microbatches: int, *, shards_optimizer: bool, recomputes: bool
) -> str:
    """Name a setting by its axes and what else a job would say of it."""
    shared = ", shardOptimizer" if shards_optimizer else ""
    recomputed = ", recompute" if recomputes else ""
    return f"{axes}, microbatches {microbatches}{shared}{recomputed}"


def _values(value: bool, *, may_vary: bool) -> tuple[bool, ...]:
    return (False, True) if may_vary else (value,)


def _mesh(degrees: Mapping[str, int], ranks: int) -> shape.MeshShape:
    """Fill in the axis that is -1; a BadConfigurationError says where axes do not fit the ranks."""
    axes = [axis.value for axis in shape.Axis]
    for name, degree in degrees.items():
        if name not in axes:
            raise errors.BadConfigurationError(
                f"mesh.{name} is no axis of a mesh: give {', '.join(axes)}."
            )
        if degree < 1 and degree != -1:
            raise errors.BadConfigurationError(
                f"mesh.{name} is {degree}: give a number from 1, or -1 for the remaining ranks."
            )
    left = [name for name, degree in degrees.items() if degree == -1]
    if len(left) > 1:
        raise errors.BadConfigurationError(
            f"mesh.{left[0]} and mesh.{left[1]} are both -1: only one can take the remaining ranks."
        )
    degrees_of_mesh = shape.MeshShape(
        **{name: degree for name, degree in degrees.items() if degree != -1}
    )
    remainder, beyond = divmod(ranks, degrees_of_mesh.size)
    if beyond or (not left and remainder != 1):
        written = " x ".join(f"{name} {degree}" for name, degree in degrees.items())
        raise errors.BadConfigurationError(
            f"The mesh ({written}) does not fit {ranks} devices: the product of its axes has to be "
            f"{ranks}{', or to divide it' if left else ', or one axis -1'}."
        )
    return dataclasses.replace(degrees_of_mesh, **dict.fromkeys(left, remainder))


def _meshes(ranks: int) -> Iterator[shape.MeshShape]:
    divisors = [size for size in range(1, ranks + 1) if ranks % size == 0]
    for data, stage, spatial in itertools.product(divisors, repeat=3):
        tensor, remainder = divmod(ranks, data * stage * spatial)
        if tensor and not remainder:
            yield shape.MeshShape(data=data, stage=stage, spatial=spatial, tensor=tensor)


def _microbatches(mesh: shape.MeshShape, constraints: Constraints) -> list[int]:
    """The numbers of microbatches to look at: powers of two that divide the batch of a replica."""
    replica_batch, remainder = divmod(constraints.batch, mesh.data)
    if remainder:
        return []
    if constraints.microbatches is not None:
        return [] if replica_batch % constraints.microbatches else [constraints.microbatches]
    powers = (2**power for power in range(_MOST_MICROBATCHES.bit_length()))
    return [count for count in powers if replica_batch % count == 0]
