"""Chooses mesh, microbatches and cuts: the step that takes least among those that fit. Pure."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.contract import plan
from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.planning import (
    blocks,
    cost_tables,
    costs,
    cuts,
    explain,
    hardware,
    predict,
    search_space,
)

MOST_CUTS = 160
"""So many downsets are looked at. A chain with fewer nodes is cut exactly."""

NEARLY = 0.02
"""So much longer than the shortest step one may take whose stages hold weights and their state more
evenly: an estimate is not better than that, and no plan may be 5 % worse than the best of all."""

_GRAIN = 0.01
"""Of an even share of weights and their state: smaller differences are none."""

_COMPARED = 8
"""So many of the best settings are run in thought; the others are known well enough."""

_SHOWN = 5
"""Alternatives that a plan tells, of those that are possible and of those that are not."""

ShardingsOf = Callable[[shape.Mesh], Sequence[costs.Sharding]]
"""Gives the way of each node on a mesh; raises a TrainerError when it cannot be split so."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is planned for what."""

    model: graph.Graph
    times: Sequence[costs.NodeTime]
    costs: costs.Costs
    cluster: hardware.Cluster
    shardings_of: ShardingsOf


@dataclasses.dataclass(frozen=True, slots=True)
class _Cut:
    setting: search_space.Setting
    path: tuple[int, ...]
    value: float
    """Seconds of a step by the formula of `cuts`; or, for one that does not fit, bytes."""


_Run = tuple[_Cut, predict.Prediction]


def plan_for(
    subject: Subject, constraints: search_space.Constraints, measured: bool = False
) -> plan.Plan:
    """Find the best plan.

    Raises:
        BadConfigurationError: what is wanted is impossible, or does not fit the devices.
    """
    return _Planner(subject).find(constraints, measured)


class _Planner:
    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._cluster = subject.cluster
        self._tables: dict[tuple[int, int], cost_tables.Tables | errors.TrainerError] = {}

    def find(self, constraints: search_space.Constraints, measured: bool) -> plan.Plan:
        fits, misfits = self._search(search_space.every(constraints, self._cluster.size))
        if not fits:
            least = min(misfits, key=lambda one: one.value)
            limit = self._cluster.device.memory or 0
            sentence = explain.excess(self._run(least), least.setting, len(misfits), limit)
            raise errors.BadConfigurationError(sentence)
        runs = [(one, self._run(one)) for one in self._candidates(fits)]
        runs.sort(key=lambda pair: pair[1].step_seconds)
        (best, prediction), *rest = self._evened(runs)
        others = [*_others(best, prediction, rest), *self._impossible(misfits)]
        axes = explain.axes(best.setting.mesh)
        return plan.Plan(
            mesh=axes,
            microbatches=best.setting.microbatches,
            schedule=best.setting.order,
            batch=constraints.batch,
            memory=self._cluster.device.memory,
            measured=measured,
            order=prediction.order,
            ends=prediction.ends,
            stages=prediction.stages,
            ranks=plan.ranks(axes, self._cluster.devices),
            step_seconds=prediction.step_seconds,
            bubble=prediction.bubble,
            message_share=prediction.message_share,
            spans=prediction.spans,
            reasons=tuple(explain.reasons(prediction, best.setting, others)),
            alternatives=tuple(others),
        )

    def _search(self, every: Sequence[search_space.Setting]) -> tuple[list[_Cut], list[_Cut]]:
        """The best cut of each setting, and for those that do not fit the one that lacks least."""
        fits: list[_Cut] = []
        misfits: list[_Cut] = []
        problem: errors.TrainerError | None = None
        for setting in every:
            try:
                known = self._known(setting.mesh)
            except errors.TrainerError as error:
                problem = error
                continue
            cut = self._best(known, setting)
            if cut is not None:
                fits.append(cut)
            else:
                misfits.append(_roomiest(known, setting))
        if problem is not None and not fits and not misfits:
            raise problem
        return fits, misfits

    def _best(self, known: cost_tables.Tables, setting: search_space.Setting) -> _Cut | None:
        rows, loads = known.matrices(setting, self._cluster)
        path = cuts.best(rows, loads)
        return None if path is None else _Cut(setting, path, cuts.step(path, rows, loads))

    def _candidates(self, fits: Sequence[_Cut]) -> list[_Cut]:
        """The best cut of each mesh and number of microbatches, and the best one's next best."""
        ranked = sorted(fits, key=lambda one: one.value)[:_COMPARED]
        second = self._second(ranked[0])
        return ranked if second is None else [*ranked, second]

    def _second(self, best: _Cut) -> _Cut | None:
        """The best cut of a setting that differs from the best one."""
        known = self._known(best.setting.mesh)
        rows, loads = known.matrices(best.setting, self._cluster)
        alternatives: list[_Cut] = []
        for stage, place in enumerate(best.path[1:-1]):
            limited = [rows[stage].copy(), loads[stage].copy()]
            for one in limited:
                one[:, place] = np.inf
            path = cuts.best(
                [*rows[:stage], limited[0], *rows[stage + 1 :]],
                [*loads[:stage], limited[1], *loads[stage + 1 :]],
            )
            if path is not None:
                alternatives.append(_Cut(best.setting, path, cuts.step(path, rows, loads)))
        return min(alternatives, key=lambda one: one.value, default=None)

    def _evened(self, runs: Sequence[_Run]) -> list[_Run]:
        """Put the cut first whose weights and state are even, if it is hardly slower."""
        best, prediction = runs[0]
        setting = best.setting
        known = self._known(setting.mesh)
        state = known.variables.state
        unit = _GRAIN * float(state[0, -1]) / setting.mesh.stage
        if setting.mesh.stage == 1 or not unit:
            return list(runs)
        rows, loads = known.matrices(setting, self._cluster)
        sizes = np.ceil(np.where(known.valid, state, np.inf) / unit)
        path = cuts.evenest(rows, loads, sizes, (1 + NEARLY) * best.value)
        if path is None or path == best.path:
            return list(runs)
        even = _Cut(setting, path, cuts.step(path, rows, loads))
        run = self._run(even)
        if run.step_seconds > (1 + NEARLY) * prediction.step_seconds:
            return list(runs)
        return [
            (even, run),
            *(one for one in runs if one[0].path != path or one[0].setting != setting),
        ]

    def _known(self, mesh: shape.Mesh) -> cost_tables.Tables:
        """The tables for a way of splitting layers, made once; or the TrainerError why not."""
        subject, key = self._subject, (mesh.spatial, mesh.tensor)
        if key not in self._tables:
            try:
                shardings = subject.shardings_of(mesh)
                self._tables[key] = cost_tables.Tables(
                    subject.model, subject.costs, subject.times, *self._cuts, shardings
                )
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
    def _cuts(self) -> tuple[tuple[blocks.Block, ...], tuple[int, ...]]:
        weights = [one.each for one in self._subject.times]
        return blocks.cuttable(self._subject.model, weights, MOST_CUTS)

    def _run(self, cut: _Cut) -> predict.Prediction:
        known = self._known(cut.setting.mesh)
        return predict.predict(self._subject.model, known, cut.path, cut.setting, self._cluster)

    def _impossible(self, misfits: Sequence[_Cut]) -> Iterator[plan.Alternative]:
        """The meshes that do not fit, the nearest to it first."""
        seen: set[shape.Mesh] = set()
        limit = self._cluster.device.memory or 0
        for one in sorted(misfits, key=lambda one: one.value):
            if one.setting.mesh not in seen and len(seen) < _SHOWN:
                seen.add(one.setting.mesh)
                what = f"does not fit: a device lacks {explain.size(one.value - limit)}"
                yield _alternative(one.setting, what, None, round(one.value))


def _roomiest(known: cost_tables.Tables, setting: search_space.Setting) -> _Cut:
    """The cut whose fullest device is emptiest."""
    peaks = [known.memory(setting, stage)["peak"] for stage in range(setting.mesh.stage)]
    least = cuts.least(peaks, np.maximum)
    if least is None:
        raise AssertionError("there are enough blocks for the stages")
    return _Cut(setting, *least)


def _others(
    best: _Cut, prediction: predict.Prediction, rest: Sequence[_Run]
) -> Iterator[plan.Alternative]:
    """The next best: another cut, other microbatches, and other meshes, each once."""
    seen: set[tuple[shape.Mesh, int]] = set()
    for one, run in itertools.islice(rest, _SHOWN):
        key = (one.setting.mesh, one.setting.microbatches)
        if key in seen:
            continue
        seen.add(key)
        what = "another mesh"
        if one.setting == best.setting:
            what = explain.difference(prediction, run)
        elif one.setting.mesh == best.setting.mesh:
            what = "other microbatches"
        yield _alternative(one.setting, what, run.step_seconds, run.peak)


def _alternative(
    setting: search_space.Setting, what: str, seconds: float | None, peak: int
) -> plan.Alternative:
    return plan.Alternative(
        mesh=explain.axes(setting.mesh),
        microbatches=setting.microbatches,
        what=what,
        step_seconds=seconds,
        peak_bytes=peak,
    )
