"""The tables of one model for every mesh, each made once. Pure."""

import functools

import numpy as np

from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.planning import (
    blocks,
    cost_tables,
    costs,
    cuts,
    explain,
    search_space,
)

MOST_CUTS = 160
"""Maximum number of downsets to search. A shorter chain is solved exactly."""


class MeshTables:
    """Of one model and its devices."""

    def __init__(self, subject: costs.Subject) -> None:
        self.subject = subject
        self._tables: dict[tuple[int, int], cost_tables.Tables | errors.TrainerError] = {}

    def for_mesh(self, mesh: shape.MeshShape) -> cost_tables.Tables:
        """The tables for a division of layers; raises the TrainerError why there is none."""
        subject, key = self.subject, (mesh.spatial, mesh.tensor)
        if key not in self._tables:
            try:
                shardings = subject.shardings_of(mesh)
                self._tables[key] = cost_tables.Tables(subject, *self._cuttable, shardings)
            except errors.TrainerError as error:
                self._tables[key] = error
        result = self._tables[key]
        if isinstance(result, errors.TrainerError):
            raise result
        if mesh.stage > result.most_stages:
            why = blocks.why_not_more(subject.model, result.blocks, subject.costs.colocated)
            raise errors.BadConfigurationError(
                explain.too_many_stages(mesh.stage, result.most_stages, len(result.blocks), why)
            )
        return result

    def roomiest(self, setting: search_space.Setting) -> tuple[tuple[int, ...], float]:
        """The cut whose fullest device is emptiest, and the bytes of that device."""
        tables = self.for_mesh(setting.mesh)
        peaks = [tables.memory(setting, stage)["peak"] for stage in range(setting.mesh.stage)]
        least = cuts.least(peaks, np.maximum)
        if least is None:
            raise AssertionError("there are enough blocks for the stages")
        return least

    @functools.cached_property
    def _cuttable(self) -> tuple[tuple[blocks.Block, ...], tuple[int, ...]]:
        weights = [node_time.each for node_time in self.subject.times]
        return blocks.cuttable(self.subject.model, weights, MOST_CUTS)
