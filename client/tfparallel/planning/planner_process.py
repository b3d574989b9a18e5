"""Runs the planner in a process that has TensorFlow."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import TextIO

from tfparallel import errors
from tfparallel.backends.local import folders
from tfparallel_operator.api import load
from tfparallel_trainer.contract import exits, plan

_SHOWN = 20
"""Lines of the trainer's errors that are shown when it fails for no known reason."""

_SOURCE = "source"

_NOISE = re.compile(r"WARNING: All log messages|[IW]\d{4} ")
"""Start of the lines that TensorFlow logs at its start."""


class ImpossiblePlanError(load.SpecError):
    """The devices, the mesh or the memory do not allow a plan; the message says what would."""


def ask(
    question: plan.Question, files: Mapping[str, str | bytes], output: TextIO | None = None
) -> plan.Plan:
    """Start the trainer and wait for its answer; it ends when this process is interrupted.

    Args:
        question: the model and the devices to plan for.
        files: the module's files; empty: they are in the question's folder.
        output: gets what the module prints; None: the standard error gets it.

    Raises:
        SpecError: the user's module raises an error.
        ImpossiblePlanError: the trainer refuses the question.
        Failure: it failed.
    """
    output = output or sys.stderr
    with tempfile.TemporaryDirectory(prefix="tfparallel-plan-") as folder:
        answer, failure = (pathlib.Path(folder, name) for name in ("plan.json", "failure"))
        if files:
            folders.VolumeFolder(pathlib.Path(folder, _SOURCE), files).prepare()
            question = question.model_copy(update={"folder": str(pathlib.Path(folder, _SOURCE))})
        done = subprocess.run(
            (sys.executable, "-m", plan.MODULE, str(answer), str(failure)),
            input=question.model_dump_json(by_alias=True),
            check=False,
            cwd=question.folder,  # as `tfparallel run`: the module may read the files next to it
            capture_output=True,
            text=True,
            env={"TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow", **os.environ},
        )
        output.write(done.stdout)
        if done.returncode == exits.Exit.DONE:
            return plan.Plan.model_validate_json(answer.read_bytes())
        lines = done.stderr.splitlines()
        sentence = failure.read_text(encoding="utf-8") if failure.exists() else ""
        if sentence and done.returncode in (exits.Exit.USER_ERROR, exits.Exit.BAD_CONFIGURATION):
            shown = (line for line in lines if sentence not in line and not _NOISE.match(line))
            output.writelines(f"{line}\n" for line in shown)
            is_impossible = done.returncode == exits.Exit.BAD_CONFIGURATION
            raise (ImpossiblePlanError if is_impossible else load.SpecError)(sentence)
        last = "\n".join(lines[-_SHOWN:])
        raise errors.Failure(
            f"the planner ended with {done.returncode} ({exits.describe(done.returncode)})\n{last}"
        )
