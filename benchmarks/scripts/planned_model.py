"""The model of `benchmarks.models.planned`, as the planner takes it."""

import pathlib
from collections.abc import Callable
from typing import Any

from benchmarks.models import planned
from tfparallel_trainer import user
from tfparallel_trainer.engines.split.model import graph, recording, skeleton


def record() -> tuple[Any, graph.Graph]:
    """Return the compiled Keras model, and its graph."""
    functions: dict[str, Callable[..., Any]]
    functions = {"build_model": planned.build_model, "compile_model": planned.compile_model}
    module = user.Module(pathlib.Path(planned.__file__), functions)
    model = skeleton.build(module, 0)
    recorded = recording.record(model)
    skeleton.compile_model(module, model)
    return model, recorded
