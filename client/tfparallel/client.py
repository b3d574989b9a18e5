"""The client for Python, in the shape of the Kubeflow SDK's TrainerClient."""

import os
import pathlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, Unpack

from tfparallel import manifest, models, operations, places
from tfparallel.backend import Backend
from tfparallel.diagnosis import findings, job_diagnosis
from tfparallel.functions import program as programs
from tfparallel.loop_thread import LoopThread
from tfparallel_operator.api import load, names

Callback = Callable[[models.Job], object]


class TrainerClient:
    """Trains jobs and follows them; its calls block, for scripts and notebooks.

    The backend's coroutines run on an event loop in a thread of its own, so the client also works
    where a loop runs already, as in a notebook. `close`, the end of a `with` block, or the end of
    the interpreter closes the connection; jobs go on.

    Methods raise `load.SpecError` where an argument is wrong, with `errors.JobNotFound` among them,
    and `errors.Failure` where the backend does not do what it was asked for. Both are sentences.
    """

    def __init__(self, place: places.Place | None = None) -> None:
        self._backend: Backend = (place or places.Cluster()).connect()
        self._loop = LoopThread()
        self._close = weakref.finalize(self, self._loop.stop)
        try:
            self._loop.connect(self._backend)
        except BaseException:
            self._close()
            raise

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
        if callable(source) and func is None:
            return self._train_function(source, func_args or {}, packages, folder, **options)
        if func is not None and source is None:
            return self._train_function(func, func_args or {}, packages, folder, **options)
        if source is None or callable(source) or func is not None or func_args or packages:
            raise load.SpecError(
                "train: give either a source, or func, which alone takes func_args and packages"
            )
        document, lies_in = manifest.read(source, folder, **options)
        return self._loop.call(self._backend.create_job(document, lies_in))

    def _train_function(
        self,
        function: programs.Function,
        arguments: Mapping[str, Any],
        packages: Sequence[str],
        folder: pathlib.Path | None,
        **options: Unpack[manifest.Options],
    ) -> models.Job:
        training = operations.train_function(
            self._backend, function, arguments, packages, folder, **options
        )
        return self._loop.call(training)

    def get_job(self, name: str) -> models.Job:
        """Return a job as it is now."""
        return self._loop.call(self._backend.get_job(name))

    def list_jobs(self, *, everywhere: bool = False) -> Sequence[models.Job]:
        """Return all jobs by name: of the namespace, or of all namespaces."""
        return self._loop.call(self._backend.list_jobs(everywhere=everywhere))

    def list_replicas(self, name: str) -> Sequence[models.Replica]:
        """Return a job's replicas, by role and number."""
        return self._loop.call(self._backend.list_replicas(self.get_job(name)))

    def get_job_logs(
        self,
        name: str,
        replica: str | None = None,
        *,
        follow: bool = False,
        tail: int | None = None,
    ) -> Iterator[str]:
        """Yield the lines of a replica.

        Args:
            name: the job's.
            replica: such as worker-1; None: the coordinator, which reports progress, or of a failed
                job the replica that failed first; "all": every replica, its name before each line.
            follow: whether to go on until the job ends, over restarts.
            tail: how many lines at most; None: all.
        """
        lines = operations.read_logs(self._backend, name, replica, follow=follow, tail=tail)
        return self._loop.stream(lines)

    def get_job_events(self, name: str) -> Sequence[models.Event]:
        """Return what was reported of a job and its replicas, oldest first."""
        return self._loop.call(self._backend.list_events(self.get_job(name)))

    def diagnose_job(self, name: str) -> findings.Diagnosis:
        """Return why a job is as it is, with evidence and a remedy, as `tfparallel why` says it."""
        return self._loop.call(job_diagnosis.diagnose_job(self._backend, name))

    def watch_job(self, name: str) -> Iterator[models.Job]:
        """Yield a job now and after each change, until it is deleted."""
        return self._loop.stream(self._backend.watch_job(name))

    def watch_progress(self, name: str) -> Iterator[models.Progress]:
        """Yield each report of how far training is, until the job has ended."""
        return self._loop.stream(operations.watch_progress(self._backend, name))

    def wait_for_job_status(
        self,
        name: str,
        status: str | Iterable[str] = names.State.SUCCEEDED,
        *,
        timeout: float | None = None,
        callbacks: Iterable[Callback] = (),
    ) -> models.Job:
        """Wait until a job is in a state, and return it.

        Args:
            name: the job's.
            status: the state, or several of which one is enough.
            timeout: seconds; None: no limit.
            callbacks: called with the job, now and after each change, in the thread of the caller;
                they may use the client.

        Raises:
            TimeoutError: the job is not in the state within the time.
            Failure: the job has ended in another state, or was deleted.
        """
        callbacks = tuple(callbacks)
        versions = operations.watch_until(self._backend, name, status, timeout)
        for job in self._loop.stream(versions):
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

        Raises:
            SpecError: the script leaves several models, or none of the name.
            Failure: the job has not succeeded, keeps no model, or the place cannot be read.
        """
        return self._loop.call(
            operations.fetch_model(self._backend, name, to=to, file=file, path=path)
        )

    def suspend_job(self, name: str) -> None:
        """Delete a job's replicas and keep the job: a checkpoint is saved first."""
        self._loop.call(self._backend.suspend_job(name, suspend=True))

    def resume_job(self, name: str) -> None:
        """Have a suspended job run again, from its last checkpoint."""
        self._loop.call(self._backend.suspend_job(name, suspend=False))

    def scale_job(self, name: str, workers: int) -> None:
        """Change the number of workers of a job that has minReplicas or maxReplicas."""
        self._loop.call(self._backend.scale_job(name, workers))

    def delete_job(self, name: str, *, delete_results: bool = False) -> None:
        """Delete a job; checkpoints, models and logs stay, unless `delete_results` (local only)."""
        self._loop.call(self._backend.delete_job(name, delete_results=delete_results))
