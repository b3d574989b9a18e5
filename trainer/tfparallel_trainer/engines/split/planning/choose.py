"""Chooses mesh, microbatches and cuts: the step that takes least among those that fit. Pure."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.contract import plan, progress
from tfparallel_trainer.engines.split.planning import (
    cost_tables,
    costs,
    cuts,
    explain,
    mesh_tables,
    predict,
    remedies,
    search_space,
)

NEARLY = 0.02
"""Prefer more even memory if the step is longer by at most this share. Estimates are no more
precise, and no plan may be 5 % worse than the best of all."""

_GRAIN = 0.01
"""Share of an even division of weights and state below which differences are ignored."""

_COMPARED = 8
"""Number of top settings to simulate."""

_SHOWN = 5
"""Alternatives shown per group (feasible, infeasible)."""


class MisfitError(errors.BadConfigurationError):
    """Nothing that a plan may choose fits the memory of the devices."""

    def __init__(self, roomiest: plan.Plan, tried: int, memory: progress.MemoryPlan) -> None:
        super().__init__(explain.excess(roomiest, tried, memory))
        self.roomiest = roomiest
        """The plan whose fullest device lacks least."""
        self.memory = memory
        """What that device lacks, and what would make the model fit."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Cut:
    setting: search_space.Setting
    path: tuple[int, ...]
    value: float
    """Seconds of a step by the formula of `cuts`; or, for one that does not fit, bytes."""


def plan_for(subject: costs.Subject, constraints: search_space.Constraints) -> plan.Plan:
    """Find the best plan, or raise a BadConfigurationError if none is possible.

    Raises:
        MisfitError: plans are possible, and none fits.
    """
    search = _Search(subject)
    fits, misfits = search.best_cuts(constraints)
    if not fits:
        roomiest = search.run(min(misfits, key=lambda cut: cut.value))
        roomiest = roomiest.model_copy(update={"reasons": tuple(explain.reasons(roomiest, ()))})
        changes = [*remedies.find(subject, constraints)]
        limit = subject.cluster.device.memory or 0
        memory = explain.memory_plan(roomiest, limit, changes)
        raise MisfitError(roomiest, len(misfits), memory)
    runs = [(candidate, search.run(candidate)) for candidate in search.candidates(fits)]
    runs.sort(key=lambda run: run[1].step_seconds)
    best, *rest = search.evened(runs)
    limit = subject.cluster.device.memory or 0
    others = (*_others(best, rest), *_impossible(misfits, fits, limit))
    reasons = [*explain.reasons(best, others)]
    if best.shard_optimizer and constraints.shards_optimizer is None:
        reasons.append(explain.sharing(_lacking(best, misfits, shards_optimizer=False)))
    if best.recompute and constraints.recomputes is None:
        reasons.append(explain.recomputing(_lacking(best, misfits, recomputes=False)))
    return best.model_copy(update={"reasons": tuple(reasons), "alternatives": others})


class _Search:
    def __init__(self, subject: costs.Subject) -> None:
        self._subject = subject
        self._tables = mesh_tables.MeshTables(subject)

    def best_cuts(self, constraints: search_space.Constraints) -> tuple[list[_Cut], list[_Cut]]:
        """The best cut of each setting, and for those that do not fit the one that lacks least.

        What holds less memory is looked at where nothing else fits, or where it is faster.
        """
        subject = self._subject
        fits: list[_Cut] = []
        misfits: list[_Cut] = []
        problem: errors.TrainerError | None = None
        for setting in search_space.every(constraints, subject.cluster.size):
            try:
                tables = self._tables.for_setting(setting)
            except errors.TrainerError as error:
                problem = error
                continue
            fitting: _Cut | None = None
            for variant in search_space.variants(setting, constraints, subject.shares_slots):
                if fitting is not None and not _may_be_faster(tables, variant, fitting):
                    continue
                rows, loads = tables.matrices(variant)
                path = cuts.best(rows, loads)
                if path is None:
                    misfits.append(_Cut(variant, *self._tables.roomiest(variant)))
                else:
                    fitting = _Cut(variant, path, cuts.step(path, rows, loads))
                    fits.append(fitting)
        if problem is not None and not fits and not misfits:
            raise problem
        return fits, misfits

    def candidates(self, fits: Sequence[_Cut]) -> list[_Cut]:
        """The best cut of each mesh and number of microbatches, and the best one's next best."""
        ranked = sorted(fits, key=lambda cut: cut.value)[:_COMPARED]
        best = ranked[0]
        rows, loads = self._tables.for_setting(best.setting).matrices(best.setting)
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
        setting, tables = cut.setting, self._tables.for_setting(cut.setting)
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
        return predict.predict(self._tables.for_setting(cut.setting), cut.path, cut.setting)


def _may_be_faster(
    tables: cost_tables.Tables, variant: search_space.Setting, fitting: _Cut
) -> bool:
    """Whether a variant of a setting can save more than estimates are precise."""
    saved = tables.applies(fitting.setting) - tables.applies(variant)
    return float(saved[0, -1]) > NEARLY * fitting.value  # of the whole model: no stage saves more


def _others(best: plan.Plan, others: Sequence[plan.Plan]) -> Iterator[plan.Alternative]:
    """The next best: another cut, other microbatches, and other meshes, each once."""
    shown_plans: set[tuple[plan.Axes, int, bool, bool]] = set()
    for other in others[:_SHOWN]:
        key = (other.mesh, other.microbatches, other.shard_optimizer, other.recompute)
        if key in shown_plans:
            continue
        shown_plans.add(key)
        peak = other.stages[explain.fullest(other)].holds.peak
        yield _alternative(
            other.mesh,
            other.microbatches,
            explain.difference(best, other),
            peak,
            other.step_seconds,
        )


def _impossible(
    misfits: Sequence[_Cut], fits: Sequence[_Cut], limit: int
) -> Iterator[plan.Alternative]:
    """The meshes that do not fit, the nearest to it first."""
    fitting = {(cut.setting.mesh, cut.setting.microbatches) for cut in fits}
    shown_meshes: set[shape.MeshShape] = set()
    for cut in sorted(misfits, key=lambda cut: cut.value):
        setting = cut.setting
        if (setting.mesh, setting.microbatches) in fitting:
            continue
        if setting.mesh not in shown_meshes and len(shown_meshes) < _SHOWN:
            shown_meshes.add(setting.mesh)
            what = f"does not fit: a device lacks {explain.size(cut.value - limit)}"
            yield _alternative(setting.axes, setting.microbatches, what, round(cut.value))


def _lacking(
    best: plan.Plan,
    misfits: Sequence[_Cut],
    *,
    shards_optimizer: bool | None = None,
    recomputes: bool | None = None,
) -> float | None:
    """Bytes that a device lacks without one of what a plan does to hold less; None: it fits.

    Args:
        best: the plan.
        misfits: what does not fit.
        shards_optimizer: instead of the plan's.
        recomputes: instead of the plan's.
    """
    without = (
        best.shard_optimizer if shards_optimizer is None else shards_optimizer,
        best.recompute if recomputes is None else recomputes,
    )
    for cut in misfits:
        setting = cut.setting
        if (setting.axes, setting.microbatches) == (best.mesh, best.microbatches) and without == (
            setting.shards_optimizer,
            setting.recomputes,
        ):
            return cut.value - (best.memory or 0)
    return None


def _alternative(
    mesh: plan.Axes, microbatches: int, what: str, peak: int, seconds: float | None = None
) -> plan.Alternative:
    return plan.Alternative(
        mesh=mesh, microbatches=microbatches, what=what, step_seconds=seconds, peak_bytes=peak
    )
