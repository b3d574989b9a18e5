"""Exchange between ranks along the data axis if each updates slices of weights only."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfparallel_trainer.engines.split.execution.backward import TrainingWorker
from tfparallel_trainer.engines.split.execution.rank_model import RankModel
from tfparallel_trainer.engines.split.execution.rank_transport import RankTransport


def scatter_gradients(
    between: RankTransport,
    workers: Mapping[int, TrainingWorker],
    dense: Mapping[int, Mapping[str, Any]],
) -> None:
    """Give the ranks of one group, those of this process, their slices of summed gradients.

    Args:
        between: this process's ends of all groups.
        workers: by rank; sparse gradients already have the mentions of all ranks.
        dense: each rank's own summands of its dense gradients, by key.
    """
    packed = {}
    for index, gradients in dense.items():
        worker = workers[index]
        with worker.ordering.compute():
            worker.gradients |= {
                key: worker.rank.own_slice(key, worker.gradients[key])
                for key in worker.rank.state
                if key not in gradients
            }
            packed[index] = [
                worker.rank.state[key].pack(gradient) for key, gradient in gradients.items()
            ]
    replicas = workers[min(dense)].rank.replicas
    for index, rows in between.reduce_scatter(replicas, packed).items():
        worker = workers[index]
        with worker.ordering.compute() as results:
            results += [
                worker.rank.state[key].unpack(row, worker.rank.data)
                for key, row in zip(dense[index], rows, strict=True)
            ]
        worker.gradients |= dict(zip(dense[index], results, strict=True))


def share_updates(between: RankTransport, workers: Iterable[TrainingWorker]) -> None:
    """Copy to each rank the slices that others have updated in a step."""
    by_index = {worker.rank.index: worker for worker in workers}
    share_slices(
        between,
        [worker.rank for worker in by_index.values()],
        lambda rank: by_index[rank.index].ordering.compute(),
    )


def share_slices(
    between: RankTransport,
    local: Iterable[RankModel],
    within: Callable[[RankModel], AbstractContextManager[Any]],
) -> None:
    """Copy to each rank of this process the slices of weights that other ranks have.

    Args:
        between: this process's ends of all groups.
        local: its ranks.
        within: the context of a rank's operations.
    """
    by_index = {rank.index: rank for rank in local if rank.state}
    rows: dict[tuple[int, ...], dict[int, list[tf.Tensor]]] = {}
    for rank in by_index.values():
        with within(rank):
            rows.setdefault(rank.replicas, {})[rank.index] = rank.updated_rows()
    for replicas, rows_of_ranks in rows.items():
        for index, joined in between.all_gather(replicas, rows_of_ranks).items():
            with within(by_index[index]):
                by_index[index].join_rows(joined)
