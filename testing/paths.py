"""Where things lie in the repository."""

import pathlib

ROOT = pathlib.Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PAGES = ROOT / "docs"
TRAINER_MODELS = ROOT / "testing" / "trainer" / "models"
POD_MODELS = ROOT / "tests" / "e2e" / "models"
"""Modules that tests train in processes and in pods."""
