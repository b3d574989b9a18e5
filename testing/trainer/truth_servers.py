"""The table of numerical truth for asynchronous training with parameter servers.

With one worker, training equals a plain Keras loop. With more, each run differs; so the losses that
runs end with are compared, over seeds, with those of one process with the same seeds.

`python -m testing.trainer.truth_servers` trains everything and writes its part of docs/truth.md.
`python -m testing.trainer.truth_servers member OUTPUT FLOATX SEEDS CASE…` is one process of it.
"""

import argparse
import dataclasses
import functools
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import types
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from testing.trainer import launch, reference, truth
from testing.trainer.models import truth as models
from tfparallel_operator.local import ports
from tfparallel_trainer import user
from tfparallel_trainer.contract import environment
from tfparallel_trainer.data import feed, source
from tfparallel_trainer.mesh import cluster, devices, shape, tasks
from tfparallel_trainer.servers import asynchronous, control, ledger, presence, steps
from tfparallel_trainer.step import replica

WORKERS = 2
SEEDS = tuple(range(truth.SEED, truth.SEED + 5))
HEADING = "## Asynchronous training"
COMMAND = "python -m testing.trainer.truth_servers"
DEVIATIONS = 3.0
"""How many standard deviations of one process's losses the mean of the workers' may be away,"""

SHARE = 0.05
"""or which share of the loss: where seeds hardly matter, staleness does."""

_REFUSED = ("use_ema", "ema_overwrite_frequency", "gradient_accumulation_steps")
"""What optimizers cannot do while several workers write at once."""

_LIMIT_SECONDS = 1800.0
_THREADS = 8


def _possible(case: truth.Case) -> truth.Case:
    """The case without what is refused here."""
    made = case.make_optimizer
    kept = {name: value for name, value in made.keywords.items() if name not in _REFUSED}
    also = {"no dropout; EMA": "no dropout", "accumulation over 2 steps": ""}
    return dataclasses.replace(
        case,
        also=also.get(case.also, case.also).replace("synchronized ", ""),
        make_optimizer=functools.partial(made.func, *made.args, **kept),
    )


CASES = tuple(map(_possible, truth.CASES))


@dataclasses.dataclass(frozen=True, slots=True)
class Trained:
    """What the workers made of a case with one seed."""

    weights: Sequence[Any]
    staleness: float
    """The mean over the updates."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
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


Outcomes = dict[str, Outcome]
"""By the names of the cases."""


def module_of(case: truth.Case) -> Any:
    """What a user's module would be."""
    return types.SimpleNamespace(**case.functions(synchronized=False))


def final_loss(case: truth.Case, weights: Sequence[Any]) -> float:
    """The loss over all examples with given weights."""
    module = module_of(case)
    model = module.build_model()
    module.compile_model(model)
    model.set_weights(weights)
    [(x, y, weight)] = reference.batches(module, models.EXAMPLES, 0, 0, None)
    return float(model.compute_loss(x, y, model(x, training=False), weight))


@dataclasses.dataclass(frozen=True, slots=True)
class Cluster:
    """What the chief trains with."""

    strategy: Any
    coordinator: Any
    workers: presence.Workers


def trained(case: truth.Case, members: Cluster, seeds: Sequence[int]) -> list[Trained]:
    """Train a case on the workers, once for each seed; it is built and traced only once."""
    made = user.Module(pathlib.Path(__file__), case.functions(synchronized=False))
    feeds = {seed: _feed(made, seed) for seed in seeds}
    some = feeds[seeds[0]]
    with members.strategy.scope():
        own = replica.build(made, shape.Mesh(), 0, "", seeds[0], some.sample())
        count = tf.Variable(0, dtype=tf.int64, trainable=False)
    engine = asynchronous.Asynchronous(
        ledger.Ledger(members.coordinator, _THREADS, members.workers.frozen),
        members.workers,
        own,
        steps.Steps(members.strategy, made, own, count, None),
        some,
        None,
        bounded=False,
    )
    slots = [(variable, variable.numpy()) for variable in own.optimizer.variables]
    found = []
    for seed, given in feeds.items():
        keras.utils.set_random_seed(seed)
        own.model.set_weights(case.build(False).get_weights())
        for variable, value in slots:
            variable.assign(value)
        count.assign(0)
        engine.staleness = asynchronous.Staleness()
        number = 0
        for epoch in range(truth.STEPS):
            for batch in given.epoch(epoch, 0):
                if number < truth.STEPS:
                    engine.give(number, batch, frozenset())
                    number += 1
        engine.settle()
        staleness = engine.staleness.values(bounded=False)["staleness_mean"]
        found.append(Trained(own.model.get_weights(), staleness))
    return found


def _feed(made: user.Module, seed: int) -> feed.Feed:
    return source.training(
        made,
        source.Request(
            seed=seed,
            source_dir=pathlib.Path(),
            output_dir=pathlib.Path(),
            division=feed.Division(batch_size=truth.BATCH, ranks=1, own=(0,)),
            endless_allowed=True,
        ),
    )


def together(
    workers: int, floatx: str, cases: Sequence[truth.Case], seeds: Sequence[int]
) -> list[list[Trained]]:
    """Train cases in processes of their own; gives for each what each seed led to."""
    names = [("chief", 0), *(("worker", index) for index in range(workers)), ("ps", 0)]
    members: dict[str, list[str]] = {}
    for (role, _), port in zip(names, ports.allocate(len(names)), strict=True):
        members.setdefault(role, []).append(f"127.0.0.1:{port}")
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "trained.npz"
        numbers = [str(CASES.index(case)) for case in cases]
        command = [sys.executable, "-m", "testing.trainer.truth_servers", "member"]
        arguments = [str(output), floatx, ",".join(map(str, seeds)), *numbers]
        running = [
            subprocess.Popen(
                [*command, *arguments],
                cwd=launch.REPOSITORY,
                env=truth.environment_of(members, role, index),
            )
            for role, index in names
        ]
        try:
            code = running[0].wait(_LIMIT_SECONDS)
        finally:
            for process in running:
                process.kill()
                process.wait()
        if code:
            raise RuntimeError(f"the chief of {workers} workers ended with {code}")
        with np.load(output) as saved:
            return [
                [_saved(saved, f"{number}/{place}/") for place in range(len(seeds))]
                for number in numbers
            ]


def _saved(saved: Any, prefix: str) -> Trained:
    weights = [saved[key] for key in saved.files if key.startswith(f"{prefix}w")]
    return Trained(weights, float(saved[f"{prefix}staleness"]))


def work(output: pathlib.Path, floatx: str, seeds: Sequence[int], numbers: Sequence[int]) -> None:
    """Be one process: the chief trains and writes; the others serve until they are killed."""
    given = tasks.parse(os.environ[environment.TF_CONFIG])
    devices.prepare(1, alone=False)
    addresses = {role: list(found) for role, found in given.addresses().items()}
    task = given.task
    if task.role != "chief":
        peers = tf.train.ClusterSpec(
            {role: found for role, found in addresses.items() if role != "chief"}
        )
        tf.distribute.Server(peers, job_name=task.role, task_index=task.index).join()
    with control.Control(task) as answers:
        cluster.reach(given, given.peers, 120, print)
        members = _connect(addresses, presence.Workers(given.of("worker"), answers, print))
        arrays: dict[str, Any] = {}
        with truth.precision(floatx):
            for number in numbers:
                for place, one in enumerate(trained(CASES[number], members, seeds)):
                    prefix = f"{number}/{place}/"
                    arrays |= {f"{prefix}w{key:03}": array for key, array in enumerate(one.weights)}
                    arrays[f"{prefix}staleness"] = np.asarray(one.staleness)
    np.savez(output, **arrays)
    os._exit(0)


def _connect(addresses: dict[str, list[str]], workers: presence.Workers) -> Cluster:
    [port] = ports.allocate(1)
    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({**addresses, "chief": [f"127.0.0.1:{port}"]}),
            task_type="chief",
            task_id=0,
            rpc_layer="grpc",
        )
    )
    return Cluster(strategy, tf.distribute.coordinator.ClusterCoordinator(strategy), workers)


def measure(cases: Sequence[truth.Case], floatxs: Sequence[str], seeds: Sequence[int]) -> Outcomes:
    """Train everything."""
    differences: dict[str, dict[str, float]] = {case.name: {} for case in cases}
    for floatx in floatxs:
        for case, [one] in zip(cases, together(1, floatx, cases, seeds[:1]), strict=True):
            with truth.precision(floatx):
                wanted, _ = reference.train(module_of(case), truth.STEPS, truth.BATCH, seeds[0])
            differences[case.name][floatx] = truth.difference(
                one.weights, wanted, relative=floatx == "float32"
            )
    outcomes = {}
    for case, found in zip(cases, together(WORKERS, "float64", cases, seeds), strict=True):
        with truth.precision("float64"):
            alone = [
                final_loss(
                    case, reference.train(module_of(case), truth.STEPS, truth.BATCH, seed)[0]
                )
                for seed in seeds
            ]
            losses = [final_loss(case, one.weights) for one in found]
        outcomes[case.name] = Outcome(
            differences[case.name],
            (statistics.fmean(alone), statistics.stdev(alone)),
            (statistics.fmean(losses), statistics.stdev(losses)),
            statistics.fmean(one.staleness for one in found),
        )
    return outcomes


def section(outcomes: Outcomes) -> str:
    """Its part of the page."""
    head = f"one worker | loss of one process | of {WORKERS} workers | staleness"
    lines = [
        HEADING,
        "",
        f"Generated by `{COMMAND}`. With one worker and one server, the weights are",
        "compared as above, with the same limits. With more workers each run differs, so what is",
        f"compared is the loss over all examples after {truth.STEPS} updates: of one process in a "
        "plain Keras",
        f"loop, and of {WORKERS} workers and a server that take the same batches, each over "
        f"{len(SEEDS)} seeds. The mean",
        f"of the workers' losses has to be within {DEVIATIONS:g} standard deviations of one "
        "process's, or within",
        f"{100 * SHARE:g} % of it. Each cell is mean ± standard deviation; staleness is",
        "the mean over all updates. Optimizers do without what servers refuse (EMA, accumulation);",
        "BatchNormalization normalises by the worker's batch.",
        "",
        f"| model | optimizer | with | {head} |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        one = outcomes[case.name]
        exact = " / ".join(f"{one.difference[floatx]:.0e}" for floatx in truth.LIMITS)
        alone, workers = (
            f"{mean:.4f} ± {deviation:.4f}" for mean, deviation in (one.alone, one.together)
        )
        lines.append(
            f"| {case.model} | {case.optimizer} | {case.also} | {exact} | {alone} | {workers} "
            f"| {one.staleness:.2f} |"
        )
    return "\n".join(lines) + "\n"


def parsed(text: str) -> Outcomes:
    """What a page's part says."""
    outcomes = {}
    for case in CASES:
        start = f"| {case.model} | {case.optimizer} | {case.also} |"
        [row] = [line for line in text.splitlines() if line.startswith(start)]
        exact, alone, workers, staleness = row.removeprefix(start).strip(" |").split(" | ")
        outcomes[case.name] = Outcome(
            dict(zip(truth.LIMITS, map(float, exact.split(" / ")), strict=True)),
            _pair(alone),
            _pair(workers),
            float(staleness),
        )
    return outcomes


def _pair(text: str) -> tuple[float, float]:
    mean, deviation = map(float, text.split(" ± "))
    return mean, deviation


def faults(outcomes: Outcomes) -> list[str]:
    """Rows beyond their limits."""
    found = []
    for case in CASES:
        one = outcomes.get(case.name)
        if one is None:
            continue
        for floatx, value in one.difference.items():
            limit = case.limit if floatx == "float64" else truth.LIMITS[floatx]
            if not value <= limit:
                found.append(f"{case.name} with one worker in {floatx} differs by {value:.1e}")
        if not one.alike:
            found.append(f"{case.name}: {one.together} with {WORKERS} workers, {one.alone} alone")
    return found


def main(arguments: Sequence[str]) -> int:
    """Write the part of the page, or be a member of a cluster."""
    parser = argparse.ArgumentParser(description="Train asynchronously and write docs/truth.md.")
    modes = parser.add_subparsers(dest="mode")
    member = modes.add_parser("member", help="be one process of a training")
    member.add_argument("output", type=pathlib.Path)
    member.add_argument("floatx")
    member.add_argument("seeds")
    member.add_argument("cases", type=int, nargs="+")
    given = parser.parse_args(arguments)
    if given.mode == "member":
        work(
            given.output, given.floatx, [int(seed) for seed in given.seeds.split(",")], given.cases
        )
    outcomes = measure(CASES, tuple(truth.LIMITS), SEEDS)
    truth.write(HEADING, section(outcomes))
    return truth.ended(faults(outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
