"""Parses the train log that the trainer writes in each run. Pure: takes the text of the file."""

import dataclasses
import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfparallel_operator.api import load
from tfparallel_trainer.contract import outputs

_INPUT_WAIT = "input_wait"
"""Metrics in the log that say nothing about the model."""


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """A line of the train log."""

    time: datetime.datetime
    event: str
    step: int
    metrics: Mapping[str, float]
    """Loss and metrics; some may not be finite."""
    input_wait: float | None
    """The share of the time that the devices waited for data; None: not recorded."""
    fields: Mapping[str, Any]
    """The others, which follow from the event."""

    @property
    def examples_per_second(self) -> float | None:
        """How fast training is."""
        return self.fields.get("examplesPerSecond")

    @property
    def moment(self) -> datetime.datetime:
        """When it happened: a checkpoint when training went on, before its write ended."""
        return self.time - datetime.timedelta(seconds=self.fields.get("writeSeconds", 0.0))

    @property
    def is_first_step(self) -> bool:
        """Whether a process of the trainer has just made its first step."""
        return self.event == outputs.TrainEvent.FIRST_STEP


_NO_RECORD = (
    *(ValueError, KeyError, TypeError, AttributeError),
    *(OverflowError, RecursionError),  # a number or a nesting that JSON allows and Python does not
)


def parse(text: str, file: str) -> Sequence[Record]:
    """Read a train log. Text after the last line end is still being written.

    Args:
        file: its name in errors.

    Raises:
        SpecError: a line is none of the trainer's.
    """
    return tuple(_parse_lines(text.split("\n")[:-1], file))


def _parse_lines(lines: Sequence[str], file: str) -> Iterator[Record]:
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
            metrics = {name: float(value) for name, value in fields.pop("metrics", {}).items()}
            yield Record(
                time=datetime.datetime.fromisoformat(fields.pop("time")),
                event=str(fields.pop("event")),
                step=int(fields.pop("step")),
                input_wait=metrics.pop(_INPUT_WAIT, None),
                metrics=metrics,
                fields=fields,
            )
        except _NO_RECORD as error:
            raise load.SpecError(
                f"{file}:{number}: not a record of the trainer: {line[:80]!r}. Remove the line, and"
                " run the command again"
            ) from error
