"""Our operator, which writes into the file REPORT how long its event loop was blocked at most,
from its start or the last SIGUSR1 until all of its work has ended.

A block is one callback of the loop, by the clock, without the time in which the kernel gave the
core to others. A thread looks at long ones while they last, and so knows where they were.
"""

import asyncio
import gc
import json
import os
import pathlib
import signal
import sys
import threading
import time
import traceback

from tfparallel_operator import main

_LOOK_SECONDS = 0.005
_LONG_SECONDS = 0.01
_FRAMES = 6


class Watch:
    """Times every callback of the event loop of the thread that it is made in."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        # Of the whole process: its main thread. The second number is the time spent waiting.
        self._scheduled = os.open(f"/proc/self/task/{os.getpid()}/schedstat", os.O_RDONLY)
        self._begun = 0.0
        self._last_progress: tuple[float, str] = (0.0, "")
        self._collecting = (0.0, 0.0)
        self.reset()

    def reset(self) -> None:
        """Forget what was so far."""
        self.longest, self.where, self.collection, self.callbacks = 0.0, "", 0.0, 0

    def start(self) -> None:
        plain, close = asyncio.Handle._run, asyncio.Runner.close

        def run(handle: asyncio.Handle) -> None:
            waited, self._begun = self._waited(), time.perf_counter()
            try:
                plain(handle)
            finally:
                self._ended(handle, waited)

        def ended(runner: asyncio.Runner) -> None:
            asyncio.Handle._run = plain  # type: ignore[method-assign]
            close(runner)  # It waits for threads, when nothing waits for the loop.

        asyncio.Handle._run = run  # type: ignore[method-assign, assignment]
        asyncio.Runner.close = ended  # type: ignore[method-assign, assignment]
        gc.callbacks.append(self._collected)
        threading.Thread(target=self._look, daemon=True).start()

    def _ended(self, handle: asyncio.Handle, waited: float) -> None:
        seconds = time.perf_counter() - self._begun
        self.callbacks += 1
        if seconds > self.longest:
            seconds -= self._waited() - waited
            if seconds > self.longest:
                begun, stack = self._last_progress
                self.longest = seconds
                self.where = stack if begun == self._begun else _named(handle)
        self._begun = 0.0

    def _waited(self) -> float:
        return int(os.pread(self._scheduled, 100, 0).split()[1]) / 1e9

    def _look(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            begun = self._begun
            if begun and time.perf_counter() - begun > _LONG_SECONDS:
                frame = sys._current_frames()[self._thread]
                stack = traceback.extract_stack(frame)[-_FRAMES:]
                places = (f"{pathlib.Path(frame.filename).name}:{frame.name}" for frame in stack)
                self._last_progress = (begun, " > ".join(places))

    def _collected(self, phase: str, _: dict[str, int]) -> None:
        now, waited = time.perf_counter(), self._waited()
        if phase == "start":
            self._collecting = now, waited
        else:
            begun, before = self._collecting
            self.collection = max(self.collection, now - begun - (waited - before))


def _named(handle: asyncio.Handle) -> str:
    """Which task a callback went on with, and where that waits now."""
    task = getattr(getattr(handle, "_callback", None), "__self__", None)
    if not isinstance(task, asyncio.Task):
        return repr(handle)
    places = (
        f"{pathlib.Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        for frame in task.get_stack()
    )
    return f"{task.get_name()} before {' > '.join(places)}"


if __name__ == "__main__":
    watch = Watch()
    watch.start()
    signal.signal(signal.SIGUSR1, lambda *_: watch.reset())
    try:
        main.main()
    finally:
        report = {
            "longest": watch.longest,
            "where": watch.where,
            "collection": watch.collection,
            "callbacks": watch.callbacks,
        }
        pathlib.Path(os.environ["REPORT"]).write_text(json.dumps(report), encoding="utf-8")
