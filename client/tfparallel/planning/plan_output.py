"""The plan from a model or a job to tables and a picture, or to data."""

import pathlib
from collections.abc import Sequence

import click

from tfparallel.backends.local import folders
from tfparallel.drawing import svg
from tfparallel.planning import plan_picture, plan_tables, planner_process, request
from tfparallel.terminal import display, wrapping
from tfparallel_trainer.contract import plan

PICTURE = "plan.svg"
MACHINE = "plan.json"


def print_json(subject: request.Subject, folder: pathlib.Path | None) -> None:
    """Ask for a plan and print it as data; a folder gets its picture and its data too.

    Raises:
        SpecError: what is asked for is impossible, or the folder cannot be written to.
        Failure: the trainer failed.
    """
    answer = _answer(subject)
    click.echo(answer.model_dump_json(by_alias=True, indent=2))
    if folder is not None:
        _write(answer, folder)


def print_tables(subject: request.Subject, folder: pathlib.Path) -> None:
    """Ask for a plan, print it for people, and leave its picture and its data in a folder.

    Raises:
        SpecError: what is asked for is impossible, or the folder cannot be written to.
        Failure: the trainer failed.
    """
    answer = _answer(subject)
    out, _ = display.consoles()
    plan_tables.show(answer, out)
    for file in _write(answer, folder):
        out.print(str(file), soft_wrap=True)


def _answer(subject: request.Subject) -> plan.Plan:
    for note in subject.notes:
        wrapping.say(f"note: {note}")
    return planner_process.ask(subject.question, subject.files)


def _write(answer: plan.Plan, folder: pathlib.Path) -> Sequence[pathlib.Path]:
    """Write the plan as data and, if it can be drawn, as a picture; return the files."""
    machine, picture = folder / MACHINE, folder / PICTURE
    with folders.output(folder):
        machine.write_text(answer.model_dump_json(by_alias=True), encoding="utf-8")
        if not svg.is_available():
            wrapping.say(f"note: no {PICTURE}: {svg.MISSING}")
            return (machine,)
        picture.write_text(plan_picture.picture(answer).document, encoding="utf-8")
    return machine, picture
