"""Public models, trained as jobs and compared with a plain Keras loop."""

import contextlib
import dataclasses
import pathlib
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing import paths
from testing.trainer import cases, launch, reference, trainer_processes
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import exits, outputs

FOLDER = paths.TRAINER_MODELS / "public"
SCRIPT = paths.TRAINER_MODELS / "fit_public.py"
STEPS, EPOCHS, BATCH = 6, 3, 12
"""Of 24 examples, so that each model is traced once."""
MICROBATCHES = 2
LOSS_LIMITS = {"float64": 1e-9, "float32": 1e-5}
"""The largest difference of a step's loss, relative to it."""
SINGLE = ("captcha",)
"""Models whose loss, CTC, Keras computes in float32."""
SPLIT = "ModelSplit"
_LIMIT_SECONDS = 1800.0
_REFUSALS = (exits.Exit.USER_ERROR, exits.Exit.BAD_CONFIGURATION)


@dataclasses.dataclass(frozen=True, slots=True)
class StrategyLayout:
    """A strategy with its processes and devices: a column of the table."""

    name: str
    processes: int
    devices: int
    strategy: str
    mesh: Mapping[str, object] | None = dataclasses.field(default=None, hash=False)

    def __str__(self) -> str:
        return self.name

    @property
    def has_stages(self) -> bool:
        """Whether the model sees one microbatch after the other."""
        return self.mesh is not None and "stage" in self.mesh


MIRRORED = StrategyLayout("Mirrored", 1, 2, "Mirrored")
WORKERS = StrategyLayout("MultiWorkerMirrored", 2, 1, "MultiWorkerMirrored")
FIT = StrategyLayout("fit", 2, 1, "MultiWorkerMirrored")
STAGES = StrategyLayout("stage 2", 2, 1, SPLIT, {"stage": 2, "microbatches": MICROBATCHES})
TENSOR = StrategyLayout("tensor 2", 1, 2, SPLIT, {"tensor": 2})
SPATIAL = StrategyLayout("spatial 2", 1, 2, SPLIT, {"spatial": 2})
HYBRID = StrategyLayout("data 2 x tensor 2", 2, 2, SPLIT, {"data": 2, "tensor": 2})
LAYOUTS = (MIRRORED, WORKERS, FIT, STAGES, TENSOR, SPATIAL, HYBRID)

MODELS: dict[str, tuple[StrategyLayout, ...]] = {
    "attention_translation": (),
    "autoencoder": (SPATIAL,),
    "bidirectional_lstm": (FIT,),
    "captcha": (MIRRORED,),
    "convnext": (SPATIAL,),
    "deep_and_cross": (),
    "detector": (SPATIAL,),
    "diffusion": (),
    "efficientnet": (SPATIAL,),
    "fourier_decoder": (),
    "gan": (FIT,),
    "graph_attention": (),
    "llama": (),
    "masked_language_model": (),
    "mlp_mixer": (),
    "mobilenet": (SPATIAL,),
    "next_frame": (SPATIAL,),
    "recommender": (),
    "recommender_subclassed": (FIT,),
    "resnet": (SPATIAL,),
    "siamese": (SPATIAL,),
    "subclassed": (FIT,),
    "super_resolution": (SPATIAL,),
    "swin": (SPATIAL,),
    "switch_transformer": (),
    "tab_transformer": (FIT,),
    "text_transformer": (),
    "tickets": (HYBRID,),
    "tied_decoder": (HYBRID,),
    "translation": (MIRRORED,),
    "two_towers": (),
    "unet": (SPATIAL,),
    "vae": (FIT, SPATIAL),
    "vision_transformer": (),
    "weather": (),
    "word2vec": (),
}
"""Each model with its layouts besides those that all have."""


def layouts(name: str) -> list[StrategyLayout]:
    """The layouts that a model is trained on, in the order of the table."""
    return [layout for layout in LAYOUTS if layout in {WORKERS, STAGES, TENSOR, *MODELS[name]}]


@dataclasses.dataclass(frozen=True, slots=True)
class ModelOutcome:
    """The outcome of a model on a layout."""

    difference: float | None = None
    """The largest one of a weight from that of one process; None without a result."""
    refusal: str = ""
    """The sentence that ended the job before its first step."""
    fault: str = ""
    """What must not happen: a crash, a wrong number, a refusal after the first step."""


def measure(
    runs: trainings.Runs, name: str, layouts: Sequence[StrategyLayout]
) -> dict[StrategyLayout, ModelOutcome]:
    """Train a model on some layouts."""
    ended = {layout: _train(runs, name, layout) for layout in layouts}
    results = {
        layout: JobResult(_result(run, layout), _losses(run), layout.has_stages)
        for layout, run in ended.items()
        if set(run.codes) == {exits.Exit.DONE}
    }
    differences = trainer_processes.call(compare, name, list(results.values())) if results else []
    compared = dict(zip(results, differences, strict=True))
    return {layout: compared.get(layout) or _refused(run) for layout, run in ended.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class JobResult:
    """What a job has left behind."""

    model: pathlib.Path
    losses: list[float]
    """Of each step, where they are logged."""
    has_stages: bool
    """Whether the model saw one microbatch after the other."""


def compare(name: str, results: Sequence[JobResult]) -> list[ModelOutcome]:
    """Compare trained models with the one that a plain Keras loop trains in this process."""
    module = reference.load(name, FOLDER)
    keras.utils.set_random_seed(cases.SEED)
    model = module.build_model()
    x, *_ = module.training_data()
    model(keras.tree.map_structure(lambda part: tf.convert_to_tensor(part[:1]), x))
    plain: dict[bool, tuple[list[Any], list[float]]] = {}
    outcomes = []
    for result in results:
        in_parts = _normalizes(name) and result.has_stages
        if in_parts not in plain:
            rows = np.array_split(np.arange(BATCH), MICROBATCHES) if in_parts else ()
            parts = [part.tolist() for part in rows]
            plain[in_parts] = reference.train(module, STEPS, BATCH, cases.SEED, parts=parts)
        model.load_weights(result.model)
        weights, losses = plain[in_parts]
        difference = cases.difference(model.get_weights(), weights, relative=False)
        expected = pytest.approx(losses, rel=LOSS_LIMITS[_type(name)])
        fault = ""
        if not difference <= limit(name):
            fault = f"a weight differs by {difference:.1e}, beyond {limit(name)}"
        elif result.losses and result.losses != expected:
            fault = f"the losses are {result.losses}, not {losses}"
        outcomes.append(ModelOutcome(difference, fault=fault))
    return outcomes


def limit(name: str) -> float:
    """The largest difference of a weight of a model."""
    if _normalizes(name):
        return max(cases.NORMALISED_LIMIT, cases.LIMITS[_type(name)])
    return cases.LIMITS[_type(name)]


def _type(name: str) -> str:
    return "float32" if name in SINGLE else "float64"


def _normalizes(name: str) -> bool:
    return "BatchNormalization" in (FOLDER / f"{name}.py").read_text(encoding="utf-8")


def _train(runs: trainings.Runs, name: str, layout: StrategyLayout) -> trainings.Run:
    folder = f"{name}-{layout}".replace(" ", "-")
    environments = runs.environments(
        f"{name}.py",
        folder=folder,
        source=FOLDER,
        processes=layout.processes,
        devices=layout.devices,
        strategy=layout.strategy,
        mesh=None if layout.mesh is None else dict(layout.mesh),
        step_log=True,
        steps=STEPS,
        globalBatchSize=BATCH,
        seed=cases.SEED,
    )
    command: Sequence[str] = launch.TRAINER
    if layout is FIT:
        numbers = map(str, (BATCH, EPOCHS, cases.SEED))
        command = (str(SCRIPT), name, *numbers, str(runs.folder / folder / "fit.keras"))
    with runs.group(environments, command, logs=f"{folder}/logs") as group:
        with contextlib.suppress(subprocess.TimeoutExpired):
            group.wait(_LIMIT_SECONDS)
        ended = [group.result(number) for number in range(layout.processes)]
    return trainings.Run(runs.folder / folder, ended)


_PLACE = re.compile(r"^[^ ]+\.py(:\d+)?: ")
"""Where a refusal's cause stands, which is not the same on every machine."""


def _result(run: trainings.Run, layout: StrategyLayout) -> pathlib.Path:
    return run.folder / "fit.keras" if layout is FIT else run.output / outputs.MODEL


def _losses(run: trainings.Run) -> list[float]:
    return run.losses() if (run.output / outputs.STEP_LOG).exists() else []


def _refused(run: trainings.Run) -> ModelOutcome:
    codes = set(run.codes)
    refusing = [process for process in run.ended if process.code in _REFUSALS]
    if not refusing or not codes <= {*_REFUSALS, exits.Exit.PEER_LOST}:
        errors = "\n".join(process.errors[-2000:] for process in run.ended)
        return ModelOutcome(fault=f"the exit codes are {run.codes}: {errors}")
    _, _, located = refusing[0].errors.rpartition("error: ")
    sentence = _PLACE.sub("", located)
    if _losses(run):
        return ModelOutcome(fault=f"after the first step: {sentence}")
    return ModelOutcome(refusal=" ".join(sentence.split()))
