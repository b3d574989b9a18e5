"""Models that are trained asynchronously with parameter servers, and compared with one process.

With one worker, training equals a plain Keras loop. With more, each run differs; so the losses that
runs end with are compared, over seeds, with those of one process with the same seeds.

`python -m testing.trainer.cases_servers OUTPUT FLOATX SEEDS CASE…` is one process of a training.
"""

import argparse
import dataclasses
import functools
import os
import pathlib
import statistics
import sys
import types
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from testing.trainer import cases, reference, requests
from testing.trainer import runs as trainings
from testing.trainer.models import truth as models
from tfparallel.backends.local import ports
from tfparallel_trainer import tasks, user
from tfparallel_trainer.comms import cluster, devices, shape
from tfparallel_trainer.contract import environment
from tfparallel_trainer.data import batch_division, data_functions
from tfparallel_trainer.engines.servers import asynchronous, control, ledger, presence, worker_steps
from tfparallel_trainer.objective import replica

WORKERS = 2
SEEDS = tuple(range(cases.SEED, cases.SEED + 5))
DEVIATIONS = 3.0
"""How many standard deviations of one process's losses the mean of the workers' may be away,"""

SHARE = 0.05
"""or which share of the loss: where seeds hardly matter, staleness does."""

_REFUSED = ("use_ema", "ema_overwrite_frequency", "gradient_accumulation_steps")
"""What optimizers cannot do while several workers write at once."""

_LIMIT_SECONDS = 1800.0
_THREADS = 8


def _possible(case: cases.Case) -> cases.Case:
    """The case without what is refused here."""
    optimizer = case.make_optimizer
    options = {name: value for name, value in optimizer.keywords.items() if name not in _REFUSED}
    also = {"no dropout; EMA": "no dropout", "accumulation over 2 steps": ""}
    return dataclasses.replace(
        case,
        also=also.get(case.also, case.also).replace("synchronized ", ""),
        make_optimizer=functools.partial(optimizer.func, *optimizer.args, **options),
    )


CASES = tuple(map(_possible, cases.CASES))


@dataclasses.dataclass(frozen=True, slots=True)
class Trained:
    """The workers' result for a case with one seed."""

    weights: Sequence[Any]
    staleness: float
    """The mean over the updates."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServersOutcome:
    """A row of the table."""

    difference: dict[str, float]
    """Of one worker from a plain loop, for each type."""
    alone: tuple[float, float]
    """Mean and standard deviation of the loss that one process ends with."""
    together: tuple[float, float]
    """The same of the workers."""
    staleness: float

    @property
    def alike(self) -> bool:
        """Whether the workers' mean is as near to that of one process as it has to be."""
        mean, deviation = self.alone
        return abs(self.together[0] - mean) <= max(DEVIATIONS * deviation, SHARE * abs(mean))


Outcomes = dict[str, ServersOutcome]
"""By the names of the cases."""


def module_of(case: cases.Case) -> Any:
    """What a user's module would be."""
    return types.SimpleNamespace(**case.functions(synchronized=False))


def final_loss(case: cases.Case, weights: Sequence[Any]) -> float:
    """The loss over all examples with given weights."""
    module = module_of(case)
    model = module.build_model()
    module.compile_model(model)
    model.set_weights(weights)
    [(x, y, weight)] = reference.batches(module, models.EXAMPLES, 0, 0, None)
    return float(model.compute_loss(x, y, model(x, training=False), weight))


@dataclasses.dataclass(frozen=True, slots=True)
class ServersCluster:
    """What the chief trains with."""

    strategy: Any
    coordinator: Any
    workers: presence.Workers


def train(case: cases.Case, members: ServersCluster, seeds: Sequence[int]) -> list[Trained]:
    """Train a case on the workers, once for each seed; it is built and traced only once."""
    module = user.Module(pathlib.Path(__file__), case.functions(synchronized=False))
    feeds = {seed: _feed(module, seed) for seed in seeds}
    first = feeds[seeds[0]]
    with members.strategy.scope():
        chief_replica = replica.build(module, shape.MeshShape(), 0, "", seeds[0], first.sample())
        count = tf.Variable(0, dtype=tf.int64, trainable=False)
    engine = asynchronous.Asynchronous(
        ledger=ledger.Ledger(members.coordinator, _THREADS, members.workers.count_hung),
        workers=members.workers,
        replica=chief_replica,
        steps=worker_steps.WorkerFunctions(members.strategy, module, chief_replica, count, None),
        training=first,
        evaluation=None,
    )
    slots = [(variable, variable.numpy()) for variable in chief_replica.optimizer.variables]
    results = []
    for seed, examples in feeds.items():
        keras.utils.set_random_seed(seed)
        chief_replica.model.set_weights(case.build(False).get_weights())
        for variable, value in slots:
            variable.assign(value)
        count.assign(0)
        engine.staleness = asynchronous.Staleness()
        number = 0
        for epoch in range(cases.STEPS):
            for batch in examples.epoch(epoch, 0):
                if number < cases.STEPS:
                    engine.submit(number, [batch], frozenset())
                    number += 1
        engine.drain()
        staleness = engine.staleness.values(bounded=False)["staleness_mean"]
        results.append(Trained(chief_replica.model.get_weights(), staleness))
    return results


def _feed(module: user.Module, seed: int) -> batch_division.BatchSource:
    division = batch_division.BatchSharding(batch_size=cases.BATCH, ranks=1, local_ranks=(0,))
    return data_functions.training(module, requests.build_request(division, seed))


def train_together(
    runs: trainings.Runs,
    workers: int,
    floatx: str,
    chosen: Sequence[cases.Case],
    seeds: Sequence[int],
    *,
    new: bool,
) -> list[list[Trained]]:
    """Train cases in processes of their own; returns for each what each seed led to."""
    names = [("chief", 0), *(("worker", index) for index in range(workers)), ("ps", 0)]
    members: dict[str, list[str]] = {}
    for (role, _), port in zip(names, ports.allocate(len(names)), strict=True):
        members.setdefault(role, []).append(f"{ports.HOST}:{port}")
    output = runs.folder / f"{workers}-{floatx}.npz"
    numbers = [str(CASES.index(case)) for case in chosen]
    environments = [
        {environment.TF_CONFIG: cases.tf_config(members, role, index)} for role, index in names
    ]
    command = (
        "-m",
        "testing.trainer.cases_servers",
        str(output),
        floatx,
        ",".join(map(str, seeds)),
    )
    with runs.group(environments, (*command, *numbers), logs=output.stem, new=new) as group:
        group.processes[0].wait(_LIMIT_SECONDS)
        chief = group.result(0)
    if chief.code:
        raise RuntimeError(f"The chief of {workers} workers ended so: {chief}")
    with np.load(output) as arrays:
        return [
            [_read(arrays, f"{number}/{index}/") for index in range(len(seeds))]
            for number in numbers
        ]


def _read(arrays: Any, prefix: str) -> Trained:
    weights = [arrays[key] for key in arrays.files if key.startswith(f"{prefix}w")]
    return Trained(weights, float(arrays[f"{prefix}staleness"]))


def work(output: pathlib.Path, floatx: str, seeds: Sequence[int], numbers: Sequence[int]) -> None:
    """Be one process: the chief trains and writes; the others serve until they are killed."""
    processes = tasks.parse(os.environ[environment.TF_CONFIG])
    devices.prepare(1, alone=False)
    addresses = {role: list(hosts) for role, hosts in processes.addresses().items()}
    task = processes.task
    if task.role != "chief":
        peers = tf.train.ClusterSpec(
            {role: hosts for role, hosts in addresses.items() if role != "chief"}
        )
        tf.distribute.Server(peers, job_name=task.role, task_index=task.index).join()
    with control.Control(task) as answers:
        cluster.reach(processes, processes.peers, 120, print)
        members = _connect(
            addresses, presence.Workers(processes.with_role("worker"), answers, print)
        )
        arrays: dict[str, Any] = {}
        with cases.precision(floatx):
            for number in numbers:
                for index, result in enumerate(train(CASES[number], members, seeds)):
                    prefix = f"{number}/{index}/"
                    arrays |= {
                        f"{prefix}w{key:03}": array for key, array in enumerate(result.weights)
                    }
                    arrays[f"{prefix}staleness"] = np.asarray(result.staleness)
    np.savez(output, **arrays)
    os._exit(0)


def _connect(addresses: dict[str, list[str]], workers: presence.Workers) -> ServersCluster:
    [port] = ports.allocate(1)
    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({**addresses, "chief": [f"127.0.0.1:{port}"]}),
            task_type="chief",
            task_id=0,
            rpc_layer="grpc",
        )
    )
    return ServersCluster(strategy, tf.distribute.coordinator.ClusterCoordinator(strategy), workers)


def measure(
    runs: trainings.Runs,
    chosen: Sequence[cases.Case],
    floatxs: Sequence[str],
    seeds: Sequence[int],
    *,
    new: bool = False,
) -> Outcomes:
    """Train everything, in new Pythons if `new`, else in forked ones."""
    differences: dict[str, dict[str, float]] = {case.name: {} for case in chosen}
    for floatx in floatxs:
        single = train_together(runs, 1, floatx, chosen, seeds[:1], new=new)
        for case, [result] in zip(chosen, single, strict=True):
            with cases.precision(floatx):
                expected, _ = reference.train(module_of(case), cases.STEPS, cases.BATCH, seeds[0])
            differences[case.name][floatx] = cases.difference(
                result.weights, expected, relative=floatx == "float32"
            )
    outcomes = {}
    several = train_together(runs, WORKERS, "float64", chosen, seeds, new=new)
    for case, results in zip(chosen, several, strict=True):
        with cases.precision("float64"):
            alone = [
                final_loss(
                    case, reference.train(module_of(case), cases.STEPS, cases.BATCH, seed)[0]
                )
                for seed in SEEDS
            ]
            losses = [final_loss(case, result.weights) for result in results]
        outcomes[case.name] = ServersOutcome(
            differences[case.name],
            (statistics.fmean(alone), statistics.stdev(alone)),
            (statistics.fmean(losses), statistics.stdev(losses)),
            statistics.fmean(result.staleness for result in results),
        )
    return outcomes


def faults(outcomes: Outcomes) -> list[str]:
    """Rows beyond their limits."""
    sentences = []
    for case in CASES:
        outcome = outcomes.get(case.name)
        if outcome is None:
            continue
        for floatx, value in outcome.difference.items():
            limit = case.limit if floatx == "float64" else cases.LIMITS[floatx]
            if not value <= limit:
                sentences.append(f"{case.name} with one worker in {floatx} differs by {value:.1e}")
        if not outcome.alike:
            sentences.append(
                f"{case.name}: {outcome.together} with {WORKERS} workers, {outcome.alone} alone"
            )
    return sentences


def main(arguments: Sequence[str]) -> None:
    """Be one process of a training."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("floatx")
    parser.add_argument("seeds")
    parser.add_argument("cases", type=int, nargs="+")
    options = parser.parse_args(arguments)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    work(options.output, options.floatx, seeds, options.cases)


if __name__ == "__main__":
    main(sys.argv[1:])
