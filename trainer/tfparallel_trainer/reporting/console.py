"""Lines for people."""

import contextlib
import pathlib
import sys

from tfparallel_trainer.contract import progress


class Console:
    """Writes one line at a time on the standard output, each with the replica's name, if any.

    A failure file takes the sentence of an error besides. A quiet console writes errors only.
    """

    def __init__(self, replica: str, failure_file: str = "", *, quiet: bool = False) -> None:
        self._begin = f"[{replica}] " if replica else ""
        self._failure_file = failure_file
        self._quiet = quiet

    def say(self, sentence: str) -> None:
        """Write a line at once."""
        if not self._quiet:
            print(f"{self._begin}{sentence}", flush=True)

    def fail(self, sentence: str, trace: str = "") -> None:
        """Write an error, with a traceback before it, on the standard error."""
        print(f"{trace}{self._begin}error: {sentence}", file=sys.stderr, flush=True)
        if self._failure_file:
            with contextlib.suppress(OSError):  # it is in the log
                pathlib.Path(self._failure_file).write_text(sentence, encoding="utf-8")


def metrics(values: dict[str, float]) -> str:
    """Write metrics as people read them: loss 0.123  accuracy 0.97."""
    return "  ".join(f"{name} {progress.format_number(value)}" for name, value in values.items())


def counted(number: int, thing: str) -> str:
    """Write a number of things, such as 2 processes."""
    ending = "es" if thing.endswith("s") else "s"
    return f"{number} {thing}{'' if number == 1 else ending}"
