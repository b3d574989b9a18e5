"""One write at a time runs in the background, and the main thread learns how it ended."""

import contextlib
import threading
from collections.abc import Iterator

import pytest

from tfparallel_trainer.loop import checkpoint_writer


def test_the_main_thread_goes_on_and_waits_only_when_it_has_to() -> None:
    waits: list[str] = []

    @contextlib.contextmanager
    def waiting() -> Iterator[None]:
        waits.append("began")
        yield
        waits.append("ended")

    writer = checkpoint_writer.CheckpointWriter(waiting)
    writer.wait()
    assert waits == [], "there is nothing to wait for"
    may_end, written = threading.Event(), []

    def write() -> None:
        assert may_end.wait(60)
        written.append(1)

    writer.start(write)
    writer.join(0.0)
    assert written == []
    may_end.set()
    writer.wait()
    assert written == [1]
    assert waits == ["began", "ended"]


def test_a_failed_write_is_raised_once_where_the_main_thread_waits() -> None:
    def fail() -> None:
        raise OSError("no space")

    writer = checkpoint_writer.CheckpointWriter()
    writer.start(fail)
    writer.join()
    assert isinstance(writer.error, OSError)
    with pytest.raises(OSError, match="no space"):
        writer.wait()
    assert writer.error is None
    writer.wait()
