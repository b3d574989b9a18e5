"""The ways of a batch and of a microbatch are those that docs/explanation/architecture.md lists.

The page lists modules in the order in which they call each other: a module calls only those below
it, so nobody comes back to a module by a call. What a step really calls is recorded.
"""

import functools
import pathlib
import re
import sys
import threading
import types
from collections.abc import Callable, Iterator

import tensorflow as tf

import tfparallel_trainer
from testing import paths
from testing.trainer import cases, normalised, ranks, split_ranks
from tfparallel_trainer.checkpoint import files
from tfparallel_trainer.comms import shape
from tfparallel_trainer.contract import job_file
from tfparallel_trainer.data import batch_division, feed, stream
from tfparallel_trainer.engines import engine
from tfparallel_trainer.engines.mesh import mesh_steps
from tfparallel_trainer.lifecycle import stall, termination
from tfparallel_trainer.loop import observer, training
from tfparallel_trainer.reporting import console, progress_pusher, reports

PACKAGE = pathlib.Path(tfparallel_trainer.__file__).parent
PAGE = paths.PAGES / "explanation/architecture.md"
MOST = {"### The way of a batch": 12, "### The way of a microbatch": 16}


def listed(heading: str) -> tuple[list[str], set[str]]:
    """The modules of a way in their order, and those that any of them may ask."""
    text = PAGE.read_text().split(f"{heading}\n")[1].split("\n##")[0]
    items = re.findall(r"^\d+\. `([\w/.]+)`", text, re.MULTILINE)
    helpers = text[text.index("Not listed") :]
    return items, set(re.findall(r"`([\w/]+(?:\.py|/))`", helpers))


def place(module: str, names: list[str]) -> int | None:
    """Where a way has a module, or the folder that it is in."""
    for number, name in enumerate(names):
        if module == name or (name.endswith("/") and module.startswith(name)):
            return number
    return None


class Calls:
    """Records which module of the trainer calls which."""

    def __init__(self, begins: Callable[[types.FrameType], bool]) -> None:
        self._begins = begins
        self.calls: list[tuple[tuple[str, ...], str]] = []
        """The modules that are on the stack, from the first one, and the one that is called."""

    def record(self, run: Callable[[], object]) -> None:
        """Record what is called below a frame at which the recording begins."""
        threading.setprofile(self._take)
        sys.setprofile(self._take)
        try:
            run()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _take(self, frame: types.FrameType, event: str, _: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(str(PACKAGE)):
            return
        stack = list(_package_frames(frame))
        if any(self._begins(frame) for frame in stack):
            callee, *callers = map(_module, stack)
            self.calls.append((tuple(reversed(callers)), callee))


def _package_frames(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    while frame is not None:
        if frame.f_code.co_filename.startswith(str(PACKAGE)):
            yield frame
        frame = frame.f_back


def _module(frame: types.FrameType) -> str:
    return str(pathlib.Path(frame.f_code.co_filename).relative_to(PACKAGE))


def check(heading: str, calls: Calls) -> None:
    """See that the calls are those of the page, and none goes up its list."""
    names, helpers = listed(heading)
    assert 3 < len(names) <= MOST[heading]
    assert len(set(names)) == len(names)
    called = {callee for _, callee in calls.calls}
    aside = sorted(helpers)
    unknown = {
        method for method in called if place(method, names) is None and place(method, aside) is None
    }
    assert sorted(unknown) == []
    unused = {name for name in names if all(place(method, [name]) is None for method in called)}
    assert unused == set()
    upwards = set()
    for callers, callee in calls.calls:
        below = place(callee, names)
        above = [number for method in callers if (number := place(method, names)) is not None]
        if below is not None and above and above[-1] > below:
            upwards.add((names[above[-1]], callee))
    assert upwards == set()


def a_step_begins(frame: types.FrameType) -> bool:
    """Whether a frame is one in which a batch is read, given to the engine and counted."""
    return frame.f_code.co_name == "_observed_steps" or _module(frame) == "data/feed.py"


def test_a_batch_goes_the_way_of_the_page() -> None:
    module = ranks.module(normalised.build, normalised.compile_model)
    data = normalised.examples()
    replicas = ranks.build(module, data, 2)
    division = batch_division.BatchSharding(batch_size=4, ranks=2, local_ranks=(0, 1))
    data_set = tf.data.Dataset.from_tensor_slices(data[:2])
    source = stream.StreamSource(data_set, lambda _: data_set, division, "training_data")
    examples = feed.Feed(source)
    spec = job_file.TrainerSpec.model_validate({"steps": 2, "globalBatchSize": 4})
    out = console.Console("test")
    step = mesh_steps.MeshTrainStep(module, replicas, examples.spec, 4)
    loop = training.Training(
        spec=spec,
        examples=examples,
        engine=engine.Synchronous(replicas, step, None, None),
        reporter=reports.Reporter(out, None, progress_pusher.Pusher(None, out.say), chief=True),
        termination=termination.Termination(lambda: None, 30),
        watch=stall.Watch(stall.Limits(work=600, wait=600)),
        schedule=training.CheckpointSchedule(None, True),
        save=lambda _: None,
        observer=observer.Observer(),
        start=files.Position(step=0, epoch=0, example=0),
    )
    calls = Calls(a_step_begins)
    calls.record(loop.run)
    check("### The way of a batch", calls)


def a_divided_step_begins(frame: types.FrameType) -> bool:
    """Whether a frame is that of a step of the engine which divides models."""
    return frame.f_code.co_name == "compute"


def test_a_microbatch_goes_the_way_of_the_page() -> None:
    case = next(case for case in cases.CASES if case.name == "MLP, Adam")
    functions = case.functions(synchronized=False)
    calls = Calls(a_divided_step_begins)
    for mesh in (shape.MeshShape(data=2, stage=2), shape.MeshShape(stage=2, tensor=2)):
        _, examples, step = split_ranks.prepare_new(functions, mesh, 2, batch=14)
        batch = next(iter(examples.epoch(0, 0)))
        calls.record(functools.partial(step, 0, batch, frozenset()))
    check("### The way of a microbatch", calls)
