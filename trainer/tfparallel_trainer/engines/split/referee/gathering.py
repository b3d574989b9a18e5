"""Gathers what ranks hold of a model and a batch, as whole arrays on every process."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer.checkpoint import shard
from tfparallel_trainer.comms import shape
from tfparallel_trainer.data import nest
from tfparallel_trainer.engines.split.execution import rank_model, ranks, stage_worker
from tfparallel_trainer.objective.referee import comparison, reference_model


class StateGathering:
    """Sums over all processes what each one fills in, zeros elsewhere."""

    def __init__(self, local_ranks: ranks.Ranks, state: shard.State) -> None:
        self._ranks = local_ranks
        self._state = state
        variables = local_ranks.partition.model.variables
        self.trained = [
            key for key, variable in variables.items() if variable.trainable and key in state.wholes
        ]
        """Keys of the weights that have gradients."""

    def state(self) -> dict[str, comparison.Array]:
        """The weights and the optimizer's state as a checkpoint would have them."""
        wholes = self._zeros(self._state.wholes)
        for key, entry in self._state.each():
            if entry.writes:
                wholes[key][entry.box.slices] = reference_model.value_of(entry.variable)
        return self._combined(wholes)

    def deviations(self, following: frozenset[str]) -> dict[str, float]:
        """How far copies lie from what a checkpoint takes, relative to that, by key.

        Of each copy a few projections pass the network. Variables that have no copies are left out,
        and those that follow each rank's own examples.
        """
        keys = sorted(self._state.wholes.keys() - following)
        rows = {key: row for row, key in enumerate(keys)}
        table = np.zeros((len(keys), self._ranks.partition.mesh.size, 2 + comparison.PROJECTIONS))
        for rank, share in zip(self._ranks.local, self._state.shares, strict=True):
            for key, entry in share.items():
                if key in rows:
                    box_key = 1 + zlib.crc32(repr(entry.box).encode())
                    projected = comparison.projections(reference_model.value_of(entry.variable))
                    table[rows[key], rank.index] = [box_key, entry.writes, *projected]
        total = self._ranks.combine(table.reshape(-1)).reshape(table.shape)
        deviations = {key: _deviation(total[row]) for key, row in rows.items()}
        return {key: entry for key, entry in deviations.items() if entry is not None}

    def gradients(self, of_ranks: Sequence[Sequence[Any]]) -> dict[str, comparison.Array]:
        """The gradients of the whole model, from those of each rank of this process."""
        wholes = self._zeros(self.trained)
        for rank, gradients in zip(self._ranks.local, of_ranks, strict=True):
            for key, gradient in zip(rank.trained, gradients, strict=True):
                if gradient is not None and rank.owns_state(key):
                    self._add(wholes[key], rank, key, gradient)
        return self._combined(wholes)

    def examples(self, parts: Mapping[int, Any], shares: stage_worker.Shares, spec: Any) -> Any:
        """The examples of all places along the data axis, as tensors [n, …].

        `parts`: (x, y, sample_weight) as arrays by place, of those that this process has.
        """
        speakers = {rank.data for rank in self._ranks.local if _supplies_examples(rank)}
        local = {
            data_index: list(map(np.asarray, nest.leaves(part)))
            for data_index, part in parts.items()
            if data_index in speakers
        }
        specs = nest.leaves(spec)
        widths = self._widths(local, len(shares), specs)
        rows = np.cumsum([0, *shares])
        contents = [
            np.zeros((rows[-1], *spec.shape[1:], width), np.uint8)
            for spec, width in zip(specs, widths, strict=True)
        ]
        for data_index, leaves in local.items():
            for content, leaf, width in zip(contents, leaves, widths, strict=True):
                content[rows[data_index] : rows[data_index + 1]] = _bytes_of(leaf, width)
        flat = np.concatenate([content.reshape(-1) for content in contents]).astype(np.float64)
        combined = self._ranks.combine(flat).astype(np.uint8)
        ends = np.cumsum([content.size for content in contents])[:-1]
        tensors = [
            _tensor_of(part.reshape(content.shape), kind)
            for part, content, kind in zip(np.split(combined, ends), contents, specs, strict=True)
        ]
        return nest.packed(spec, tensors)

    def _widths(self, local: Mapping[int, Any], places: int, specs: Sequence[Any]) -> list[int]:
        """How many bytes each leaf has for an element; of texts, the longest one."""
        longest = np.zeros((places, len(specs)))
        for data_index, leaves in local.items():
            for number, (leaf, spec) in enumerate(zip(leaves, specs, strict=True)):
                if spec.dtype == tf.string:
                    longest[data_index, number] = max(
                        (len(text) for text in _texts(leaf)), default=0
                    )
        combined = self._ranks.combine(longest.reshape(-1)).reshape(longest.shape).max(0)
        return [
            max(int(width), 1) if spec.dtype == tf.string else spec.dtype.size
            for spec, width in zip(specs, combined, strict=True)
        ]

    def _zeros(self, keys: Any) -> dict[str, comparison.Array]:
        return {key: np.zeros(self._state.wholes[key].shape) for key in sorted(keys)}

    def _combined(self, wholes: Mapping[str, comparison.Array]) -> dict[str, comparison.Array]:
        flat = np.concatenate(
            [np.zeros(0), *(full_value.reshape(-1) for full_value in wholes.values())]
        )
        ends = np.cumsum([full_value.size for full_value in wholes.values()])
        parts = np.split(self._ranks.combine(flat), ends)
        pairs = zip(wholes.items(), parts, strict=False)  # behind the last end is nothing
        return {key: part.reshape(full_value.shape) for (key, full_value), part in pairs}

    def _add(
        self, whole: comparison.Array, rank: rank_model.RankModel, key: str, gradient: Any
    ) -> None:
        slices = shard.box(rank.state_part(key, whole.shape), whole.shape).slices
        if isinstance(gradient, (tuple, list)):
            values, rows = gradient
            np.add.at(whole[slices], rows.numpy(), np.asarray(values, np.float64))
        else:
            whole[slices] += np.asarray(gradient, np.float64)


def _deviation(table: Any) -> float | None:
    """How far copies of a variable lie from it [ranks, place and source and projections]."""
    holders = table[table[:, 0] > 0]
    places, writes, projected = holders[:, 0], holders[:, 1] > 0, holders[:, 2:]
    if writes.all():
        return None
    sources = dict(zip(places[writes], projected[writes], strict=True))
    with np.errstate(all="ignore"):  # infinities
        apart = projected - np.array([sources[box_key] for box_key in places])
    norms = comparison.norms(apart), comparison.norms(projected[writes])
    return float(comparison.relative(*map(np.linalg.norm, norms)))


def _supplies_examples(rank: rank_model.RankModel) -> bool:
    """Whether it brings the examples of its place along the data axis."""
    return rank.is_first and not rank.coordinates[shape.Axis.STAGE]


def _texts(leaf: Any) -> list[bytes]:
    return [text if isinstance(text, bytes) else str(text).encode() for text in leaf.reshape(-1)]


def _bytes_of(leaf: Any, width: int) -> Any:
    """The bytes of each element: uint8 [n, …, width]."""
    if leaf.dtype.kind in "OSU":
        leaf = np.asarray(_texts(leaf), f"S{width}").reshape(leaf.shape)
    return np.ascontiguousarray(leaf)[..., np.newaxis].view(np.uint8).reshape(*leaf.shape, width)


def _tensor_of(content: Any, spec: Any) -> tf.Tensor:
    width = content.shape[-1]
    kind = f"S{width}" if spec.dtype == tf.string else spec.dtype.as_numpy_dtype
    return tf.constant(np.ascontiguousarray(content).view(kind)[..., 0], spec.dtype)
