"""All ranks of a mesh in this process, as a run prepares them: on virtual devices, for tests."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from testing.trainer import cases, requests, split_partition
from testing.trainer import ranks as devices
from tfparallel_trainer import user
from tfparallel_trainer.comms import shape
from tfparallel_trainer.data import batch_division, data_functions
from tfparallel_trainer.engines.split.execution import pipeline_steps, ranks
from tfparallel_trainer.engines.split.model import skeleton
from tfparallel_trainer.engines.split.pipeline import schedule
from tfparallel_trainer.objective import replica

ONE = schedule.one_forward_one_backward


def prepare(
    functions: dict[str, Callable[..., Any]],
    mesh: shape.MeshShape,
    microbatches: int,
    order: schedule.Schedule = ONE,
    batch: int = cases.BATCH,
    *,
    same_dropout: bool = False,
    shards_optimizer: bool = False,
    recomputes: bool = False,
    places: Mapping[int, str] | None = None,
) -> tuple[ranks.Ranks, batch_division.BatchSource, pipeline_steps.PipelineTrainStep]:
    """The ranks, their examples and their step.

    Args:
        functions: those of a user's module.
        mesh: of a generation that no other mesh of the process has.
        microbatches: parts of a batch that go through the stages.
        order: of each stage's work.
        batch: examples of a step.
        same_dropout: whether parts of a tensor get the dropout of the whole one.
        shards_optimizer: whether ranks along the data axis share the optimizer's state.
        recomputes: whether backward passes compute the activations of each node again.
        places: the devices of this process by rank; absent: it has all ranks.
    """
    module = user.Module(pathlib.Path(__file__), functions)
    places = places or dict(enumerate(devices.DEVICES[: mesh.size]))
    places_of_data = tuple(mesh.coordinates(rank)[shape.Axis.DATA] for rank in places)
    division = batch_division.BatchSharding(
        batch_size=batch, ranks=mesh.data, local_ranks=places_of_data
    )
    examples = data_functions.training(module, requests.build_request(division, cases.SEED))
    replica.forget_names()
    bare = skeleton.build(module, cases.SEED)
    divided = split_partition.divide(skeleton.recorded(module, bare), mesh, microbatches, order)
    divided = dataclasses.replace(
        divided,
        same_dropout=same_dropout,
        shards_optimizer=shards_optimizer,
        segment_ends=split_partition.ends_of_nodes(divided.model) if recomputes else None,
    )
    replicas = ranks.build(module, bare, divided, places, examples)
    return (
        replicas,
        examples,
        pipeline_steps.PipelineTrainStep(module, replicas, examples.spec, batch),
    )


def prepare_new(
    functions: dict[str, Callable[..., Any]],
    mesh: shape.MeshShape,
    microbatches: int,
    order: schedule.Schedule = ONE,
    batch: int = cases.BATCH,
    *,
    shards_optimizer: bool = False,
    recomputes: bool = False,
) -> tuple[ranks.Ranks, batch_division.BatchSource, pipeline_steps.PipelineTrainStep]:
    """Prepare the same mesh in a generation that no other has."""
    degrees = {str(axis): mesh.degree(axis) for axis in shape.Axis}
    renewed = shape.MeshShape(**degrees, generation=devices.generation())
    return prepare(
        functions,
        renewed,
        microbatches,
        order,
        batch,
        shards_optimizer=shards_optimizer,
        recomputes=recomputes,
    )
