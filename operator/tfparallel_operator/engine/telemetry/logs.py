"""Log lines as JSON or text, with the job that they belong to.

The context manager `about` sets the job. All lines that the code and libraries write within it
have these fields, including lines of tasks that start there.
"""

import contextlib
import contextvars
import datetime
import enum
import json
import logging
import math
import pathlib
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tfparallel_operator.api_server import errors
from tfparallel_trainer.contract import plain_text

FIELDS = ("namespace", "job", "attempt", "reconcile")
"""The fields that a line may have."""

BRIEF_BYTES = 300
"""Maximum length in bytes of an error in a line."""

BRIEF_LINES = 10
"""Maximum number of lines per minute about invalid requests."""

_MINUTE_SECONDS = 60.0

_NOTHING: Mapping[str, object] = {}
_current: contextvars.ContextVar[Mapping[str, object]] = contextvars.ContextVar(
    "about", default=_NOTHING
)


class LogFormat(enum.StrEnum):
    """How log lines are written."""

    JSON = "json"
    TEXT = "text"


@contextlib.contextmanager
def about(**fields: object) -> Iterator[None]:
    """Add some of `FIELDS` to every line that is logged within."""
    token = _current.set({**_current.get(), **fields})
    try:
        yield
    finally:
        _current.reset(token)


def brief(error: BaseException) -> str:
    """Return an error in one line: the API server's message, else the error's type and position.

    The line may quote untrusted input.
    """
    text = plain_text.shorten(str(error), BRIEF_BYTES)
    if isinstance(error, errors.ApiError):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    position = f" ({pathlib.Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{position}"


class Brief(logging.LoggerAdapter[logging.Logger]):
    """A logger for invalid requests: short lines, and few of them per minute.

    The next line says how many lines were skipped.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logger, {})
        self._clock = clock
        self._minute_began = -math.inf
        self._written = 0
        self._left_out = 0

    def log(self, level: int, msg: object, *args: object, **more: Any) -> None:
        """Log a line that ends with the error, if there is one, without a traceback."""
        if not self.isEnabledFor(level):
            return
        if self._clock() - self._minute_began >= _MINUTE_SECONDS:
            self._minute_began, self._written = self._clock(), 0
        if self._written == BRIEF_LINES:
            self._left_out += 1
            return
        self._written += 1
        error = more.get("exc_info")
        if not isinstance(error, BaseException):
            error = sys.exc_info()[1] if error else None
        text = str(msg) % args
        if error is not None:
            text += f": {brief(error)}"
        if self._left_out:
            text += f" (and {self._left_out} more, which are not shown)"
        self._left_out = 0
        self.logger.log(level, "%s", plain_text.shorten(text, 2 * BRIEF_BYTES))


def new_reconcile() -> str:
    """Return the id of a reconcile, which all its lines contain."""
    return secrets.token_hex(4)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_about(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """Time, level, the fields of the job, and the message."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        about = " ".join(f"{key}={value}" for key, value in _about().items())
        head = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname:7}"
        message = plain_text.escape(record.getMessage(), keep="\n\t")  # It may quote others.
        text = " ".join(part for part in (head, about, message) if part)
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def configure(log_format: LogFormat) -> None:
    """Log to standard error, in one format for all libraries."""
    handler = logging.StreamHandler(sys.stderr)
    as_json = log_format is LogFormat.JSON
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # kopf logs for every event that its handler succeeded.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    for activity in ("startup", "cleanup"):  # `main` logs their errors as a sentence.
        logging.getLogger(f"kopf.activities.{activity}").setLevel(logging.CRITICAL)


def _about() -> dict[str, object]:
    context = _current.get()
    return {key: context[key] for key in FIELDS if key in context}
