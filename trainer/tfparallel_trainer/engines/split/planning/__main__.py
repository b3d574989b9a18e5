"""Reads a question for a plan as JSON from its input, and writes the plan as JSON to a file.

What the user's module prints goes to the output, so the plan does not.
"""

import gc
import os
import pathlib
import sys

import pydantic

from tfparallel_trainer.contract import exits, plan
from tfparallel_trainer.lifecycle import termination
from tfparallel_trainer.reporting import console


def main() -> None:
    """Answer and end the process with an exit code of `contract.exits`."""
    # Before TensorFlow is imported: it reads this only then.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    out = console.Console("plan", sys.argv[2] if len(sys.argv) > 2 else "")
    sys.exit(int(_attempt(out)))


def _attempt(out: console.Console) -> exits.Exit:
    try:
        question = plan.Question.model_validate_json(sys.stdin.read())
        if question.calibrate:  # a device is one core
            os.environ |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
        # TensorFlow takes seconds to import; what is wrong with the question shows before.
        from tfparallel_trainer.engines.split.planning import planner

        gc.freeze()  # What was imported stays: looking for garbage in it takes as long as planning.
        result = planner.answer(question)
        pathlib.Path(sys.argv[1]).write_text(
            result.model_dump_json(by_alias=True), encoding="utf-8"
        )
    except pydantic.ValidationError as error:
        out.fail(f"The question for a plan is not valid: {error}.")
        return exits.Exit.BAD_CONFIGURATION
    except Exception as error:
        return termination.exit_of(out, error, "planner")
    return exits.Exit.DONE


if __name__ == "__main__":
    main()
