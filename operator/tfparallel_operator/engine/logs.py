"""Log lines for machines (JSON) or for people, with the job they are about."""

import datetime
import json
import logging
import sys

from tfparallel_operator.engine import settings

_ABOUT = ("namespace", "job", "attempt")
"""Fields of a record that are shown where they are known."""


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
            **_about(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """Time, level, the job where there is one, and the sentence."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        about = " ".join(f"{key}={value}" for key, value in _about(record).items())
        head = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname:7}"
        text = " ".join(part for part in (head, about, record.getMessage()) if part)
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def configure(wanted: settings.LogFormat) -> None:
    """Have everything written to standard error, one format for all libraries."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if wanted is settings.LogFormat.JSON else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # kopf says of every event that its handler succeeded.
    logging.getLogger("kopf").setLevel(logging.WARNING)


def _about(record: logging.LogRecord) -> dict[str, object]:
    return {key: getattr(record, key) for key in _ABOUT if hasattr(record, key)}
