"""What a report of progress may hold: numbers that JSON, an int64 and a person can carry, and text
without control characters. docs/reference/limits.md shows them."""

import math
from typing import Annotated

import pydantic

from tfparallel_trainer.contract import plain_text

MAX_BODY_BYTES = 32_768
"""A report that is larger is refused."""

MIN_SECONDS_BETWEEN_REPORTS = 1.0
"""A report of the same job that comes sooner is refused for now."""

MAX_COUNT = 10**15
"""Of steps, epochs and bytes."""

MAX_PARTS = 10**6
"""Of stages, devices and layers."""

MAX_METRICS = 64
MAX_NAME_LETTERS = 64
"""Of a metric's or a device's name."""

MAX_NUMBER_LETTERS = 32
"""Of a number that is written as text, and of a time to go."""

MAX_STAGES = 32
"""Of a longer pipeline a report names the first ones."""

MAX_STAGE_DEVICES = 4
"""Of more devices that a stage has a report names the first ones."""

MAX_LAYERS_LETTERS = 80
MAX_PLACE_LETTERS = 120
"""Of a line in a script's file."""

MAX_REASONS = 6
MAX_REASON_LETTERS = 320

MAX_FITTING_CHANGES = 8
MAX_MESH_LETTERS = 120
"""Of a mesh in words."""

MAX_QUANTITIES = 6
MAX_OMISSIONS = 4
MAX_OMISSION_LETTERS = 160
"""Of a sentence on what a check has not compared."""


def check_printable(text: str) -> str:
    """Return a text without control characters.

    Raises:
        ValueError: it has one.
    """
    if (control := plain_text.find_control(text)) is not None:
        raise ValueError(f"it has the control character {control}: remove it")
    return text


def check_seconds(text: str) -> str:
    """Return a number of seconds that is written as text.

    Raises:
        ValueError: it is none.
    """
    if not 0 <= float(text) < math.inf:
        raise ValueError("it is no number of seconds: send a finite one from 0")
    return text


def printable(text: str, letters: int) -> str:
    """Return a text without control characters, cut to the given number of letters."""
    return plain_text.escape(text[:letters])[:letters]


_printable = pydantic.AfterValidator(check_printable)

Count = Annotated[int, pydantic.Field(ge=0, le=MAX_COUNT)]
Parts = Annotated[int, pydantic.Field(ge=0, le=MAX_PARTS)]
Name = Annotated[str, pydantic.Field(max_length=MAX_NAME_LETTERS), _printable]
NumberText = Annotated[str, pydantic.Field(max_length=MAX_NUMBER_LETTERS), _printable]
SecondsText = Annotated[NumberText, pydantic.AfterValidator(check_seconds)]
LayersText = Annotated[str, pydantic.Field(max_length=MAX_LAYERS_LETTERS), _printable]
PlaceText = Annotated[str, pydantic.Field(max_length=MAX_PLACE_LETTERS), _printable]
ReasonText = Annotated[str, pydantic.Field(max_length=MAX_REASON_LETTERS), _printable]
MeshText = Annotated[str, pydantic.Field(max_length=MAX_MESH_LETTERS), _printable]
OmissionText = Annotated[str, pydantic.Field(max_length=MAX_OMISSION_LETTERS), _printable]
