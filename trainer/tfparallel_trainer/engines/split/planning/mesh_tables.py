"""The tables of one model for every mesh, each made once. Pure."""

import functools

import numpy as np

from tfparallel_trainer import errors
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
        self._tables: dict[tuple[int, int, tuple[str, ...]], cost_tables.Tables] = {}
        self._problems: dict[tuple[int, int], errors.TrainerError] = {}

    def for_setting(self, setting: search_space.Setting) -> cost_tables.Tables:
        """The tables for a division of layers; raises the TrainerError why there is none."""
        subject, mesh = self.subject, setting.mesh
        degrees = mesh.spatial, mesh.tensor
        if degrees in self._problems:
            raise self._problems[degrees]
        try:
            shardings = subject.shardings_of(mesh, setting.examples)
        except errors.TrainerError as error:
            self._problems[degrees] = error
            raise
        key = (*degrees, tuple(sharding.name for sharding in shardings))
        if key not in self._tables:
            self._tables[key] = cost_tables.Tables(subject, *self._cuttable, shardings)
        result = self._tables[key]
        if mesh.stage > result.most_stages:
            why = blocks.why_not_more(subject.model, result.blocks, subject.costs.colocated)
            raise errors.BadConfigurationError(
                explain.too_many_stages(mesh.stage, result.most_stages, len(result.blocks), why)
            )
        return result

    def roomiest(self, setting: search_space.Setting) -> tuple[tuple[int, ...], float]:
        """The cut whose fullest device is emptiest, and the bytes of that device."""
        tables = self.for_setting(setting)
        peaks = [tables.memory(setting, stage)["peak"] for stage in range(setting.mesh.stage)]
        least = cuts.least(peaks, np.maximum)
        if least is None:
            raise AssertionError("there are enough blocks for the stages")
        return least

    @functools.cached_property
    def _cuttable(self) -> tuple[tuple[blocks.Block, ...], tuple[int, ...]]:
        weights = [node_time.each for node_time in self.subject.times]
        return blocks.cuttable(self.subject.model, weights, MOST_CUTS)
