"""Models that are trained on many ranks, and compared with a plain Keras loop in one process.

`python -m testing.trainer.cases OUTPUT FLOATX CASE…` is one process of such a training.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import keras
import numpy as np

from testing.trainer import reference, requests
from testing.trainer import runs as trainings
from testing.trainer.models import truth as models
from tfparallel.backends.local import ports
from tfparallel_trainer import tasks, user
from tfparallel_trainer.comms import devices, rendezvous, shape
from tfparallel_trainer.contract import environment
from tfparallel_trainer.data import batch_division, data_functions
from tfparallel_trainer.engines.mesh import mesh_steps
from tfparallel_trainer.objective import replica, state

STEPS = 30
BATCH = 16
SEED = 7
LIMITS = {"float64": 1e-10, "float32": 1e-3}
NORMALISED_LIMIT = 1e-8
_LIMIT_SECONDS = 900.0


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A model, its data and an optimizer."""

    model: str
    also: str
    """What else it covers."""
    optimizer: str
    build: Callable[[bool], Any]
    """Takes whether BatchNormalization is synchronised."""
    loss: Any
    data: Callable[[], Any]
    make_optimizer: functools.partial[Any]

    @property
    def name(self) -> str:
        """Identifies it: model and optimizer."""
        return f"{self.model}, {self.optimizer}"

    @property
    def limit(self) -> float:
        """The largest difference of a weight in float64."""
        return NORMALISED_LIMIT if self.build is models.normalised else LIMITS["float64"]

    def functions(self, *, synchronized: bool) -> dict[str, Callable[..., Any]]:
        """What a user's module would have."""
        return {
            "build_model": lambda: self.build(synchronized),
            "compile_model": lambda model: model.compile(self.make_optimizer(), self.loss),
            "training_data": self.data,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessLayout:
    """Processes, and devices of each."""

    processes: int
    devices: int

    def __str__(self) -> str:
        return f"{self.processes}x{self.devices}"


LAYOUTS = (
    ProcessLayout(1, 1),
    ProcessLayout(1, 2),
    ProcessLayout(2, 1),
    ProcessLayout(3, 1),
    ProcessLayout(2, 2),
)


def _cases() -> Iterator[Case]:
    for name, also, build, loss, data, sgd, adam in models.ROWS:
        momentum = functools.partial(keras.optimizers.SGD, 0.05, momentum=0.9, **sgd)
        yield Case(name, also, "SGD momentum", build, loss, data, momentum)
        yield Case(
            name,
            also,
            "Adam",
            build,
            loss,
            data,
            functools.partial(keras.optimizers.Adam, 0.01, **adam),
        )


CASES = tuple(_cases())


@contextlib.contextmanager
def precision(floatx: str) -> Iterator[None]:
    """Let all that is built in the body compute in a type."""
    before = keras.config.floatx()
    keras.utils.clear_session()
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(floatx)
    try:
        yield
    finally:
        keras.config.set_floatx(before)
        keras.config.set_dtype_policy(before)
        keras.utils.clear_session()


def train_plainly(case: Case) -> list[Any]:
    """Train by a plain Keras loop; returns the weights."""
    module = types.SimpleNamespace(**case.functions(synchronized=False))
    weights, _ = reference.train(module, STEPS, BATCH, SEED)
    return weights


def train(
    case: Case, processes: tasks.Cluster, names: Sequence[str], generation: int
) -> tuple[list[Any], list[replica.Replica]]:
    """Train on the ranks of all processes; returns weights and this process's ranks.

    Each mesh has a generation of its own.
    """
    module = user.Module(pathlib.Path(__file__), case.functions(synchronized=True))
    mesh = shape.MeshShape(data=len(processes.tasks) * len(names), generation=generation)
    places = [processes.me * len(names) + index for index in range(len(names))]
    division = batch_division.BatchSharding(
        batch_size=BATCH, ranks=mesh.data, local_ranks=tuple(places)
    )
    examples = data_functions.training(module, requests.build_request(division, SEED))
    replicas = []
    for rank, name in zip(places, names, strict=True):
        replica.forget_names()
        replicas.append(replica.build(module, mesh, rank, name, SEED, examples.sample()))
    state.share(replicas, [0])
    step = mesh_steps.MeshTrainStep(module, replicas, examples.spec, BATCH)
    number = 0
    for epoch in range(STEPS):
        for batch in examples.epoch(epoch, 0):
            if number < STEPS:
                step(number, batch, frozenset())
                number += 1
    return replicas[0].model.get_weights(), replicas


def difference(weights: Sequence[Any], expected: Sequence[Any], *, relative: bool) -> float:
    """The largest difference of a weight; `relative` to the largest one of those expected."""
    pairs = list(zip(weights, expected, strict=True))
    largest = max(float(np.abs(array - other).max()) for array, other in pairs)
    scale = max(float(np.abs(other).max()) for _, other in pairs) if relative else 1.0
    return largest / scale


def train_together(
    runs: trainings.Runs, layout: ProcessLayout, floatx: str, cases: Sequence[Case], *, new: bool
) -> list[list[Any]]:
    """Train cases in processes of their own; returns the weights of each."""
    numbers = [str(CASES.index(case)) for case in cases]
    output = runs.folder / f"{layout}-{floatx}.npz"
    run_together(runs, layout, "testing.trainer.cases", (str(output), floatx, *numbers), new=new)
    with np.load(output) as arrays:
        return [
            [arrays[key] for key in arrays.files if key.startswith(f"{number}/")]
            for number in numbers
        ]


def run_together(
    runs: trainings.Runs, layout: ProcessLayout, module: str, arguments: Sequence[str], *, new: bool
) -> None:
    """Run a module in processes that can join each other.

    Raises:
        RuntimeError: one of them failed.
    """
    addresses = [f"{ports.HOST}:{port}" for port in ports.allocate(layout.processes)]
    environments = [
        {
            environment.TF_CONFIG: tf_config({"worker": addresses}, "worker", index),
            environment.CPU_DEVICES: str(layout.devices),
        }
        for index in range(layout.processes)
    ]
    logs = pathlib.Path(arguments[0]).stem
    with runs.group(environments, ("-m", module, *arguments), logs=logs, new=new) as group:
        processes = group.wait(_LIMIT_SECONDS)
    if any(process.code for process in processes):
        raise RuntimeError(f"The processes of {layout} ended so: {processes}")


def tf_config(members: dict[str, list[str]], role: str, index: int) -> str:
    """The TF_CONFIG of a member of a cluster."""
    return json.dumps({"cluster": members, "task": {"type": role, "index": index}})


def run_as_peer(
    train_all: Callable[[tasks.Cluster, Sequence[str]], Callable[[], object]],
) -> NoReturn:
    """Join the other processes, train, and leave when all have finished.

    Args:
        train_all: takes the cluster and the names of this process's devices; gives a barrier.
    """
    processes = tasks.parse(os.environ[environment.TF_CONFIG])
    count = devices.prepare(int(os.environ[environment.CPU_DEVICES]), processes.alone)
    cluster: object = None
    if not processes.alone:
        cluster = rendezvous.join(processes, rendezvous.meet(processes, 120, print))
    barrier = train_all(processes, devices.names(processes, count))
    barrier()
    del cluster
    os._exit(0)


def work(output: pathlib.Path, floatx: str, numbers: Sequence[int]) -> NoReturn:
    """Be one process: train cases with the others; the first one writes the weights."""

    def train_all(processes: tasks.Cluster, names: Sequence[str]) -> Callable[[], object]:
        weights: dict[str, Any] = {}
        replicas: list[replica.Replica] = []
        with precision(floatx):
            for generation, number in enumerate(numbers):
                result, replicas = train(CASES[number], processes, names, generation)
                weights |= {f"{number}/{index:03}": array for index, array in enumerate(result)}
        if processes.is_chief:
            np.savez(output, **weights)
        return state.barrier(replicas)

    run_as_peer(train_all)


Cells = dict[tuple[str, str, str], float]
"""The difference for each case, layout and type."""


def measure(
    runs: trainings.Runs,
    layouts: Sequence[ProcessLayout],
    floatxs: Sequence[str],
    cases: Sequence[Case],
    *,
    new: bool = False,
) -> Cells:
    """Train everything, each layout in processes of its own: new Pythons if `new`, else forked."""
    cells: Cells = {}
    for floatx in floatxs:
        with precision(floatx):
            expected = [train_plainly(case) for case in cases]
        for layout in layouts:
            weights = train_together(runs, layout, floatx, cases, new=new)
            for case, trained, other in zip(cases, weights, expected, strict=True):
                cells[case.name, str(layout), floatx] = difference(
                    trained, other, relative=floatx == "float32"
                )
    return cells


def faults(cells: Cells) -> list[str]:
    """Cells beyond their limits."""
    limits = {case.name: {**LIMITS, "float64": case.limit} for case in CASES}
    return [
        f"{name} on {layout} in {floatx} differs by {value:.1e}"
        for (name, layout, floatx), value in cells.items()
        if not value <= limits[name][floatx]
    ]


def main(arguments: Sequence[str]) -> None:
    """Be one process of a training."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("floatx")
    parser.add_argument("cases", type=int, nargs="+")
    options = parser.parse_args(arguments)
    work(options.output, options.floatx, options.cases)


if __name__ == "__main__":
    main(sys.argv[1:])
