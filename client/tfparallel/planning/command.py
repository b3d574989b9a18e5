"""The plan from a module to tables and a picture."""

import pathlib

from tfparallel.planning import ask, draw, show
from tfparallel.terminal import display
from tfparallel_operator.api import load
from tfparallel_trainer.contract import plan

PICTURE = "plan.svg"
MACHINE = "plan.json"


def make(question: plan.Question, folder: pathlib.Path) -> None:
    """Ask for a plan, show it, and leave its picture and its data in a folder.

    Raises:
        SpecError: what is asked for is impossible, or the folder cannot be written to.
        Failure: the trainer failed.
    """
    made = ask.ask(question)
    out, _ = display.consoles()
    out.print(show.headline(made), soft_wrap=True)
    out.print(show.placement(made))
    for line in show.split(made):
        out.print(line, soft_wrap=True)
    for line in (*show.schedule(made), "", *made.reasons):
        out.print(line, soft_wrap=True)
    if made.alternatives:
        out.print(show.alternatives(made))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MACHINE).write_text(made.model_dump_json(by_alias=True), encoding="utf-8")
        draw.picture(made, folder / PICTURE)
    except OSError as error:
        raise load.SpecError(
            f"--output {folder}: {error.strerror}; give a folder that can be written to"
        ) from error
    for file in (MACHINE, PICTURE):
        out.print(str(folder / file), soft_wrap=True)
