"""Where things lie in the repository."""

import pathlib

ROOT = pathlib.Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PAGES = ROOT / "docs"
CHART = ROOT / "charts/tfparallel-operator"
TRAINER = ROOT / "trainer/tfparallel_trainer"
TRAINER_MODELS = ROOT / "testing" / "trainer" / "models"
POD_MODELS = ROOT / "tests" / "e2e" / "models"
"""Modules that tests train in processes and in pods."""


def example_jobs(example: str = "*") -> list[pathlib.Path]:
    """Return the manifests of the jobs of an example, or of all."""
    files = sorted(EXAMPLES.glob(f"{example}/*.yaml"))
    return [file for file in files if "kind: TFParallelJob\n" in file.read_text(encoding="utf-8")]
