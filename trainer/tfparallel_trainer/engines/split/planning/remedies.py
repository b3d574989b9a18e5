"""What would make a model fit that does not: changes of a job, the smallest first. Pure."""

import dataclasses
from collections.abc import Iterator

from tfparallel_trainer import errors
from tfparallel_trainer.contract.progress import ChangedSetting, FittingChange
from tfparallel_trainer.engines.split.planning import costs, mesh_tables, search_space

_MORE_DEVICES = (2, 4, 8)
"""How many times the devices are tried."""


def find(subject: costs.Subject, constraints: search_space.Constraints) -> Iterator[FittingChange]:
    """Yield the changes of which each makes a plan fit."""
    asked = constraints
    free = dataclasses.replace(
        asked, mesh=None, microbatches=None, shards_optimizer=None, recomputes=None
    )
    tables = mesh_tables.MeshTables(subject)
    shared = dataclasses.replace(asked, shards_optimizer=True)
    if asked != shared and subject.shares_slots and _smallest(tables, shared):
        yield FittingChange(setting=ChangedSetting.SHARD_OPTIMIZER)
    recomputed = dataclasses.replace(asked, recomputes=True)
    if asked.recomputes is False and _smallest(tables, recomputed):
        yield FittingChange(setting=ChangedSetting.RECOMPUTE)
    if asked.microbatches is not None:
        setting = _smallest(tables, dataclasses.replace(asked, microbatches=None))
        if setting is not None:
            yield FittingChange(setting=ChangedSetting.MICROBATCHES, count=setting.microbatches)
    if asked.mesh is not None:
        setting = _smallest(tables, free)
        if setting is not None:
            yield FittingChange(setting=ChangedSetting.MESH, mesh=str(setting))
    halves = (asked.batch >> power for power in range(1, asked.batch.bit_length()))
    for batch in halves:
        if _smallest(tables, dataclasses.replace(asked, batch=batch)):
            yield FittingChange(setting=ChangedSetting.BATCH_SIZE, count=batch)
            break
    for times in _MORE_DEVICES:
        processes = times * subject.cluster.processes
        cluster = dataclasses.replace(subject.cluster, processes=processes)
        larger = dataclasses.replace(subject, cluster=cluster)
        setting = _smallest(mesh_tables.MeshTables(larger), free)
        if setting is not None:
            yield FittingChange(
                setting=ChangedSetting.DEVICES, count=cluster.size, mesh=str(setting)
            )
            break


def _smallest(
    tables: mesh_tables.MeshTables, constraints: search_space.Constraints
) -> search_space.Setting | None:
    """The setting that fits with the least to change, and of these the one with most room."""
    subject = tables.subject
    limit = subject.cluster.device.memory or 0
    try:
        settings = search_space.every(constraints, subject.cluster.size)
    except errors.BadConfigurationError:  # the batch is not divisible
        return None
    fitting: list[tuple[bool, bool, int, float, search_space.Setting]] = []
    for setting in settings:
        for variant in search_space.variants(setting, constraints, subject.shares_slots):
            try:
                _, peak = tables.roomiest(variant)
            except errors.TrainerError:  # the model cannot be divided so
                continue
            if peak <= limit:
                changes = (variant.recomputes, variant.shards_optimizer, variant.microbatches)
                fitting.append((*changes, peak, variant))
    return min(fitting, key=lambda row: row[:4])[4] if fitting else None
