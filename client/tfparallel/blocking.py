"""The client for Python whose calls block, for scripts and notebooks."""

import asyncio
import concurrent.futures
import contextlib
import os
import pathlib
import threading
import weakref
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar, Unpack

from tfparallel import client, manifest, models, places
from tfparallel.diagnosis import findings
from tfparallel.functions import program as programs
from tfparallel_operator.api import names

T = TypeVar("T")

_AHEAD = 1000
"""Items of a stream that wait for the caller; a log that is not read is not fetched further."""

_CLOSE_SECONDS = 5.0
"""How long the end of the interpreter waits for a connection to close."""


class TrainerClient:
    """Trains jobs and follows them; `AsyncTrainerClient` has the same methods as coroutines.

    Its coroutines run on an event loop in a thread of its own, so it also works where a loop runs
    already, as in a notebook. `close`, the end of a `with` block, or the end of the interpreter
    closes the connection; jobs go on.
    """

    def __init__(self, place: places.Place | None = None) -> None:
        self._loop = _Loop()
        self._close = weakref.finalize(self, self._loop.stop)
        try:
            self._client = self._loop.call(_connect(place))
        except BaseException:
            self._close()
            raise
        self._loop.at_end = self._client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; jobs go on."""
        self._close()

    def train(
        self,
        source: manifest.Source | programs.Function | None = None,
        *,
        func: programs.Function | None = None,
        func_args: Mapping[str, Any] | None = None,
        packages: Sequence[str] = (),
        folder: pathlib.Path | None = None,
        **options: Unpack[manifest.Options],
    ) -> models.Job:
        """Create a job and return it at once; `manifest.Options` lists the options.

        Args:
            source: the path of a model.py or a job's YAML file, a manifest, a job, or a function.
            func: a function, which each replica calls; it has to import whatever it uses.
            func_args: its arguments by name, which are data.
            packages: what pip installs in a cluster before the function is called.
            folder: where the model's files lie; None: where the source lies, or here. Of a
                function: files that go with it; None: it needs none.
            options: fields of the job.
        """
        creation = self._client.train(
            source, func=func, func_args=func_args, packages=packages, folder=folder, **options
        )
        return self._loop.call(creation)

    def get_job(self, name: str) -> models.Job:
        """Return a job as it is now."""
        return self._loop.call(self._client.get_job(name))

    def list_jobs(self, *, everywhere: bool = False) -> Sequence[models.Job]:
        """Return all jobs by name: of the namespace, or of all namespaces."""
        return self._loop.call(self._client.list_jobs(everywhere=everywhere))

    def list_replicas(self, name: str) -> Sequence[models.Replica]:
        """Return a job's replicas, by role and number."""
        return self._loop.call(self._client.list_replicas(name))

    def get_job_logs(
        self,
        name: str,
        replica: str | None = None,
        *,
        follow: bool = False,
        tail: int | None = None,
    ) -> Iterator[str]:
        """Yield the lines of a replica such as worker-1, or of "all".

        None: the coordinator, or of a failed job the replica that failed first.
        """
        lines = self._client.get_job_logs(name, replica, follow=follow, tail=tail)
        return self._loop.stream(lines)

    def get_job_events(self, name: str) -> Sequence[models.Event]:
        """Return what was reported of a job and its replicas, oldest first."""
        return self._loop.call(self._client.get_job_events(name))

    def diagnose_job(self, name: str) -> findings.Diagnosis:
        """Return why a job is as it is, with evidence and a remedy, as `tfparallel why` says it."""
        return self._loop.call(self._client.diagnose_job(name))

    def watch_job(self, name: str) -> Iterator[models.Job]:
        """Yield a job now and after each change, until it is deleted."""
        return self._loop.stream(self._client.watch_job(name))

    def watch_progress(self, name: str) -> Iterator[models.Progress]:
        """Yield each report of how far training is, until the job has ended."""
        return self._loop.stream(self._client.watch_progress(name))

    def wait_for_job_status(
        self,
        name: str,
        status: str | Iterable[str] = names.State.SUCCEEDED,
        *,
        timeout: float | None = None,
        callbacks: Iterable[client.Callback] = (),
    ) -> models.Job:
        """Wait until a job is in a state, or in one of several, and return it.

        The callbacks run in the thread of the caller, and may use the client.

        Raises:
            TimeoutError: the job is not in the state within the time.
            Failure: the job has ended in another state, or was deleted.
        """
        callbacks = tuple(callbacks)
        for job in self._loop.stream(self._client.watch_until(name, status, timeout=timeout)):
            for callback in callbacks:
                callback(job)
        return job

    def get_model(
        self,
        name: str,
        *,
        to: str | os.PathLike[str] | None = None,
        file: str | None = None,
        path: str | None = None,
    ) -> pathlib.Path:
        """Copy the trained model of a job to this machine, and return its path.

        Args:
            name: the job's.
            to: the folder; None: JOB-model below the working directory.
            file: of a script that leaves several models: the path of one below its results.
            path: where a script writes, as its container sees it; None: the claim that it mounts.
        """
        return self._loop.call(self._client.get_model(name, to=to, file=file, path=path))

    def suspend_job(self, name: str) -> None:
        """Delete a job's replicas and keep the job: a checkpoint is saved first."""
        self._loop.call(self._client.suspend_job(name))

    def resume_job(self, name: str) -> None:
        """Have a suspended job run again, from its last checkpoint."""
        self._loop.call(self._client.resume_job(name))

    def scale_job(self, name: str, workers: int) -> None:
        """Change the number of workers of a job that has minReplicas or maxReplicas."""
        self._loop.call(self._client.scale_job(name, workers))

    def delete_job(self, name: str, *, delete_results: bool = False) -> None:
        """Delete a job; checkpoints, models and logs stay, unless `delete_results` (local only)."""
        self._loop.call(self._client.delete_job(name, delete_results=delete_results))


async def _connect(place: places.Place | None) -> client.AsyncTrainerClient:
    return await client.AsyncTrainerClient(place).__aenter__()


class _Loop:
    """An event loop in a thread, and the client that it closes at the end."""

    def __init__(self) -> None:
        self.at_end: client.AsyncTrainerClient | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tfparallel-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine returns; Ctrl-C in the caller cancels it.

        Raises:
            RuntimeError: the client is closed.
        """
        return _result(self._submit(coroutine))

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        if self._loop.is_closed():
            coroutine.close()
            raise RuntimeError("this client is closed: create another TrainerClient")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stream(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield what an asynchronous generator yields; one task runs it to its end."""
        queue: asyncio.Queue[tuple[T] | None] = asyncio.Queue(maxsize=_AHEAD)

        async def pump() -> None:
            try:
                async with contextlib.aclosing(items):
                    async for item in items:
                        await queue.put((item,))
            except Exception:
                await queue.put(None)
                raise
            await queue.put(None)

        async def take() -> list[tuple[T] | None]:
            """Wait for an item, and take what is there besides: each change of threads costs."""
            return [await queue.get(), *(queue.get_nowait() for _ in range(queue.qsize()))]

        pumping = self._submit(pump())
        try:
            while True:
                for item in self.call(take()):
                    if item is None:
                        _result(pumping)
                        return
                    yield item[0]
        finally:
            pumping.cancel()

    def stop(self) -> None:
        """Close the client and end the thread; waits, unless the thread itself calls it."""
        if self._loop.is_closed():
            return

        async def close() -> None:
            try:
                if self.at_end is not None:
                    await self.at_end.__aexit__()
            finally:
                self._loop.stop()

        asyncio.run_coroutine_threadsafe(close(), self._loop)
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)


def _result(future: "concurrent.futures.Future[T]") -> T:
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
