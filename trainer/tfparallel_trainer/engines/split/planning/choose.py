"""Chooses mesh, microbatches and cuts: the step that takes least among those that fit. Pure."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.contract import plan
from tfparallel_trainer.engines.split.planning import (
    blocks,
    cost_tables,
    costs,
    cuts,
    explain,
    predict,
    search_space,
)

MOST_CUTS = 160
"""Maximum number of downsets to search. A shorter chain is solved exactly."""

NEARLY = 0.02
"""Prefer more even memory if the step is longer by at most this share. Estimates are no more
precise, and no plan may be 5 % worse than the best of all."""

_GRAIN = 0.01
"""Share of an even division of weights and state below which differences are ignored."""

_COMPARED = 8
"""Number of top settings to simulate."""

_SHOWN = 5
"""Alternatives shown per group (feasible, infeasible)."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Cut:
    setting: search_space.Setting
    path: tuple[int, ...]
    value: float
    """Seconds of a step by the formula of `cuts`; or, for one that does not fit, bytes."""


def plan_for(subject: costs.Subject, constraints: search_space.Constraints) -> plan.Plan:
    """Find the best plan, or raise a BadConfigurationError if none is possible or fits."""
    search = _Search(subject)
    fits, misfits = search.best_cuts(search_space.every(constraints, subject.cluster.size))
    if not fits:
        roomiest = search.run(min(misfits, key=lambda cut: cut.value))
        raise errors.BadConfigurationError(explain.excess(roomiest, len(misfits)))
    runs = [(candidate, search.run(candidate)) for candidate in search.candidates(fits)]
    runs.sort(key=lambda run: run[1].step_seconds)
    best, *rest = search.evened(runs)
    limit = subject.cluster.device.memory or 0
    others = (*_others(best, rest), *_impossible(misfits, limit))
    reasons = tuple(explain.reasons(best, others))
    return best.model_copy(update={"reasons": reasons, "alternatives": others})


class _Search:
    def __init__(self, subject: costs.Subject) -> None:
        self._subject = subject
        self._tables: dict[tuple[int, int], cost_tables.Tables | errors.TrainerError] = {}

    def best_cuts(self, every: Sequence[search_space.Setting]) -> tuple[list[_Cut], list[_Cut]]:
        """The best cut of each setting, and for those that do not fit the one that lacks least."""
        fits: list[_Cut] = []
        misfits: list[_Cut] = []
        problem: errors.TrainerError | None = None
        for setting in every:
            try:
                tables = self._known(setting.mesh)
            except errors.TrainerError as error:
                problem = error
                continue
            rows, loads = tables.matrices(setting)
            path = cuts.best(rows, loads)
            if path is None:
                misfits.append(_roomiest(tables, setting))
            else:
                fits.append(_Cut(setting, path, cuts.step(path, rows, loads)))
        if problem is not None and not fits and not misfits:
            raise problem
        return fits, misfits

    def candidates(self, fits: Sequence[_Cut]) -> list[_Cut]:
        """The best cut of each mesh and number of microbatches, and the best one's next best."""
        ranked = sorted(fits, key=lambda cut: cut.value)[:_COMPARED]
        best = ranked[0]
        rows, loads = self._known(best.setting.mesh).matrices(best.setting)
        alternatives: list[_Cut] = []
        for stage, index in enumerate(best.path[1:-1]):
            other_rows, other_loads = rows[:], loads[:]
            for matrices in (other_rows, other_loads):
                matrices[stage] = matrices[stage].copy()
                matrices[stage][:, index] = np.inf
            path = cuts.best(other_rows, other_loads)
            if path is not None:
                alternatives.append(_Cut(best.setting, path, cuts.step(path, rows, loads)))
        return ranked + sorted(alternatives, key=lambda cut: cut.value)[:1]

    def evened(self, runs: Sequence[tuple[_Cut, plan.Plan]]) -> list[plan.Plan]:
        """Put the cut first whose weights and state are even, if it is hardly slower."""
        cut, best = runs[0]
        plans = [candidate for _, candidate in runs]
        setting, tables = cut.setting, self._known(cut.setting.mesh)
        state = tables.variables.state(setting.replicas_of_slots)
        unit = _GRAIN * float(state[0, -1]) / setting.mesh.stage
        if setting.mesh.stage == 1 or not unit:
            return plans
        rows, loads = tables.matrices(setting)
        sizes = np.ceil(np.where(tables.valid, state, np.inf) / unit)
        path = cuts.evenest(rows, loads, sizes, (1 + NEARLY) * cut.value)
        if path is None or path == cut.path:
            return plans
        even = predict.predict(tables, path, setting)
        if even.step_seconds > (1 + NEARLY) * best.step_seconds:
            return plans
        return [even, *(candidate for candidate in plans if candidate != even)]

    def run(self, cut: _Cut) -> plan.Plan:
        """What a step with a cut costs."""
        return predict.predict(self._known(cut.setting.mesh), cut.path, cut.setting)

    def _known(self, mesh: shape.MeshShape) -> cost_tables.Tables:
        """The tables for a way of splitting layers, made once; or the TrainerError why not."""
        subject, key = self._subject, (mesh.spatial, mesh.tensor)
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

    @functools.cached_property
    def _cuttable(self) -> tuple[tuple[blocks.Block, ...], tuple[int, ...]]:
        weights = [node_time.each for node_time in self._subject.times]
        return blocks.cuttable(self._subject.model, weights, MOST_CUTS)


def _roomiest(tables: cost_tables.Tables, setting: search_space.Setting) -> _Cut:
    """The cut whose fullest device is emptiest."""
    peaks = [tables.memory(setting, stage)["peak"] for stage in range(setting.mesh.stage)]
    least = cuts.least(peaks, np.maximum)
    if least is None:
        raise AssertionError("there are enough blocks for the stages")
    return _Cut(setting, *least)


def _others(best: plan.Plan, others: Sequence[plan.Plan]) -> Iterator[plan.Alternative]:
    """The next best: another cut, other microbatches, and other meshes, each once."""
    shown_plans: set[tuple[plan.Axes, int]] = set()
    for other in others[:_SHOWN]:
        if (other.mesh, other.microbatches) in shown_plans:
            continue
        shown_plans.add((other.mesh, other.microbatches))
        what = "another mesh"
        if other.mesh == best.mesh:
            same = other.microbatches == best.microbatches
            what = explain.difference(best, other) if same else "other microbatches"
        peak = other.stages[explain.fullest(other)].holds.peak
        yield _alternative(other.mesh, other.microbatches, what, peak, other.step_seconds)


def _impossible(misfits: Sequence[_Cut], limit: int) -> Iterator[plan.Alternative]:
    """The meshes that do not fit, the nearest to it first."""
    shown_meshes: set[shape.MeshShape] = set()
    for cut in sorted(misfits, key=lambda cut: cut.value):
        setting = cut.setting
        if setting.mesh not in shown_meshes and len(shown_meshes) < _SHOWN:
            shown_meshes.add(setting.mesh)
            what = f"does not fit: a device lacks {explain.size(cut.value - limit)}"
            yield _alternative(setting.axes, setting.microbatches, what, round(cut.value))


def _alternative(
    mesh: plan.Axes, microbatches: int, what: str, peak: int, seconds: float | None = None
) -> plan.Alternative:
    return plan.Alternative(
        mesh=mesh, microbatches=microbatches, what=what, step_seconds=seconds, peak_bytes=peak
    )
