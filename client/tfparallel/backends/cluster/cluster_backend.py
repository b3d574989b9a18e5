"""A cluster as a backend of the client."""

import asyncio
import contextlib
import dataclasses
import difflib
import pathlib
import re
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Self

from tfparallel import backend as backends
from tfparallel import errors, models, submission
from tfparallel.backends.cluster import access, creation, objects, refusals
from tfparallel_operator.api import load, names, problems
from tfparallel_operator.api_server import client as api
from tfparallel_operator.api_server import errors as api_errors
from tfparallel_operator.api_server import resources
from tfparallel_operator.core import pending_reasons

FIELD_MANAGER = "tfparallel-cli"

_DELETED = "DELETED"
"""The type of a watch's event."""

_PAUSE_SECONDS = 1.0
"""Seconds between two attempts to watch."""

_OPERATORS = "app.kubernetes.io/part-of=tfparallel"
"""The label of the operator's Deployment that the chart's values do not change."""

_USUAL_NAMESPACE = "tfparallel-system"
"""Namespace of the operator, for users who may not list Deployments of all namespaces."""

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
"""Of an object in Kubernetes."""

_ROLES = ("chief", "master", "worker", "ps", "evaluator")


class ClusterBackend:
    """Jobs of one context; an asynchronous context manager."""

    def __init__(self, context: access.Context) -> None:
        self.context = context
        self._api = api.Client(context.access, manager=FIELD_MANAGER)

    async def __aenter__(self) -> Self:
        await self._api.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._api.__aexit__(None, None, None)

    @property
    def api(self) -> api.Client:
        """The client for other objects than jobs: claims, sources, versions."""
        return self._api

    @property
    def namespace(self) -> str:
        """The namespace of objects that do not name one."""
        return self.context.namespace

    async def create_job(
        self, document: Mapping[str, Any], folder: pathlib.Path, *, is_temporary: bool = False
    ) -> models.Job:
        """Create a job in the namespace, with the files of the folder that it needs.

        They are in the cluster when the call returns, so it is the same if they are temporary. A
        MisfitWarning says if the model does not fit its GPUs.

        Raises:
            SpecError: the API server refuses it, or the manifest names another namespace.
            Failure: its name is taken.
        """
        bundle = submission.build(document, (), folder)
        if (misfit := await self.find_misfit(bundle)) is not None:
            warnings.warn(misfit, errors.MisfitWarning, stacklevel=2)
        return await self.submit(bundle)

    async def find_misfit(self, bundle: submission.Submission) -> str | None:
        """Return why the model of a job does not fit its GPUs, and what would do.

        None: it fits, it is not divided, or nobody knows. Labels of its templates or of nodes name
        the GPUs; without the right to list nodes, those of templates do.
        """
        return await creation.find_misfit(self._api, bundle)

    async def submit(self, bundle: submission.Submission) -> models.Job:
        """Create a job and the objects that it needs.

        Raises:
            SpecError: the API server refuses an object as wrong.
            Failure: it refuses, or a job of the name exists.
        """
        return await creation.submit(self._api, self.context, bundle)

    async def dry_run_job(self, document: Mapping[str, Any]) -> Sequence[problems.Problem]:
        """Return the API server's problems with a job, without storing it.

        If a job of the name exists, that is not a problem of the manifest.

        Raises:
            Failure: you may not create jobs, or the API server does not answer.
        """
        namespace = document["metadata"].get("namespace", self.namespace)
        with refusals.explained(dataclasses.replace(self.context, namespace=namespace)):
            try:
                await self._api.check(resources.JOBS, namespace, document)
            except api_errors.AlreadyExists:
                return ()
            except (api_errors.Invalid, api_errors.Refused) as error:
                if refusals.lacks_right(error):
                    raise
                return refusals.problems_of(error)
        return ()

    async def list_jobs(
        self, *, everywhere: bool = False, labels: str = ""
    ) -> Sequence[models.Job]:
        """Return the jobs of the namespace, or of all namespaces, by name.

        Args:
            everywhere: whether jobs of all namespaces are listed.
            labels: a selector as kubectl takes it, such as team=vision; empty: all jobs.
        """
        with refusals.explained(self.context):
            scope = None if everywhere else self.namespace
            listing = await self._api.list(resources.JOBS, scope, labels)
        jobs = (objects.parse_listed_job(body) for body in listing.items)
        return sorted(jobs, key=lambda job: (job.namespace, job.name))

    async def get_job(self, name: str) -> models.Job:
        """Return a job.

        Raises:
            JobNotFound: no job has the name; the message suggests similar names.
        """
        if not _NAME.fullmatch(name):
            raise errors.JobNotFound(
                f"{name!r} is not the name of a job: names have lower-case letters, digits, '-' and"
                " '.' alone. Correct it"
            )
        with refusals.explained(self.context):
            try:
                body = await self._api.get(resources.JOBS.path(self.namespace, name))
            except api_errors.NotFound as error:
                jobs = await self._api.list(resources.JOBS, self.namespace)  # or: not installed
                existing = [job["metadata"]["name"] for job in jobs.items]
                raise errors.JobNotFound(self._not_found(name, existing)) from error
        return objects.parse_job(body)

    def _not_found(self, name: str, existing: Sequence[str]) -> str:
        near = difflib.get_close_matches(name, existing, n=3)
        hint = f"did you mean {', '.join(map(repr, near))}?" if near else "correct the name, or"
        return (
            f"there is no job {name!r} in namespace {self.namespace!r}: {hint} choose another"
            " namespace with -n"
        )

    async def watch_job(self, name: str) -> AsyncGenerator[models.Job, None]:
        """Yield a job now and after each change, until it is deleted.

        Raises:
            SpecError: its status is none that this version can read.
        """
        job = await self.get_job(name)
        yield job
        fields = f"metadata.name={name}"
        async for kind, changed in self._changes({job.uid: job}, fields=fields):
            if kind == _DELETED:
                return
            if changed.problem:
                raise load.SpecError(changed.problem)
            yield changed

    async def watch_jobs(
        self, *, everywhere: bool = False, labels: str = "", fields: str = ""
    ) -> AsyncGenerator[models.Job, None]:
        """Yield every job now, and a job after each of its changes, its deletion too.

        Args:
            everywhere: whether jobs of all namespaces are watched.
            labels: a selector as kubectl takes it; empty: all jobs.
            fields: a selector of fields, such as metadata.name=digits; empty: all jobs.
        """
        changes = self._changes({}, everywhere=everywhere, labels=labels, fields=fields)
        async for _, job in changes:
            yield job

    async def _changes(
        self,
        last_jobs: dict[str, models.Job],
        *,
        everywhere: bool = False,
        labels: str = "",
        fields: str = "",
    ) -> AsyncGenerator[tuple[str, models.Job], None]:
        """Yield the events of jobs: the type of the event, and the job.

        If the connection is lost, the client connects again, and yields what happened meanwhile.

        Args:
            seen: by uid, the jobs as the caller has them; it is kept up to date.
            everywhere: whether jobs of all namespaces are watched.
        """
        scope = None if everywhere else self.namespace
        while True:
            with refusals.explained(self.context):
                listing = await self._api.list(resources.JOBS, scope, labels, fields)
            jobs = {job.uid: job for job in map(objects.parse_listed_job, listing.items)}
            for uid in last_jobs.keys() - jobs.keys():
                yield _DELETED, last_jobs.pop(uid)
            for job in jobs.values():
                if _is_new(job, last_jobs):
                    yield "ADDED", job
            with (
                refusals.explained(self.context),
                contextlib.suppress(api_errors.Expired, api_errors.Unavailable),
            ):
                async for event in self._api.watch(
                    resources.JOBS, scope, listing.version, labels, fields
                ):
                    if event.type == "BOOKMARK":
                        continue
                    job = objects.parse_listed_job(event.object)
                    if event.type == _DELETED:
                        last_jobs.pop(job.uid, None)
                        yield event.type, job
                    elif _is_new(job, last_jobs):
                        yield event.type, job
            await asyncio.sleep(_PAUSE_SECONDS)

    async def list_replicas(self, job: models.Job) -> Sequence[models.Replica]:
        """Return the replicas that exist, by role and number."""
        with refusals.explained(self.context):
            selector = f"{names.LABEL_JOB}={job.name}"
            listing = await self._api.list(resources.PODS, job.namespace, selector)
        bodies = (body for body in listing.items if _is_owned(body, job))
        return sorted((objects.parse_pod(body, job.status) for body in bodies), key=_place)

    async def list_events(self, job: models.Job) -> Sequence[models.Event]:
        """Return the Events of a job, its objects and its claims, oldest first.

        By the API server's default, Events live for an hour.
        """
        with refusals.explained(self.context):
            listing = await self._api.list(resources.EVENTS, job.namespace)
        mine = [body for body in listing.items if _is_about(body.get("regarding", {}), job)]
        return pending_reasons.parse_events(mine)

    async def list_claims(self, job: models.Job) -> Sequence[models.Claim]:
        """Return the claims of a job that exist; none without the right to read them."""
        claims = []
        for name in sorted(objects.claim_names(job)):
            with contextlib.suppress(api_errors.ApiError):
                body = await self._api.get(resources.CLAIMS.path(job.namespace, name))
                claims.append(pending_reasons.parse_claim(body))
        return claims

    async def read_logs(
        self, replica: models.Replica, job: models.Job, *, follow: bool, tail: int | None
    ) -> AsyncIterator[str]:
        """Yield the lines of a replica's log, with `follow` until it ends."""
        query = {"container": replica.log_container}
        query |= {"follow": "true"} if follow else {}
        query |= {} if tail is None else {"tailLines": str(tail)}
        with refusals.explained(self.context):
            async for line in self._api.read_log(job.namespace, replica.pod, query):
                yield line.decode(errors="replace")

    async def list_operators(self) -> Sequence[models.Operator] | None:
        """Return the installed operators; None: your rights do not show them."""
        for scope in (None, _USUAL_NAMESPACE):
            try:
                listing = await self._api.list(resources.DEPLOYMENTS, scope, _OPERATORS)
            except api_errors.ApiError:
                continue
            if scope is None or listing.items:
                return [objects.parse_operator(body) for body in listing.items]
        return None

    async def suspend_job(self, name: str, *, suspend: bool) -> None:
        """Suspend a job, which deletes its replicas, or resume it.

        Raises:
            Failure: the job has ended.
        """
        await self._patch(await self._get_unfinished(name), {"runPolicy": {"suspend": suspend}})

    async def scale_job(self, name: str, workers: int) -> None:
        """Change the number of workers.

        Raises:
            SpecError: the job has none, or does not let their number change.
            Failure: the job has ended.
        """
        job = await self._get_unfinished(name)
        backends.check_elastic(job)
        await self._patch(job, {"tfReplicaSpecs": {"Worker": {"replicas": workers}}})

    async def _get_unfinished(self, name: str) -> models.Job:
        job = await self.get_job(name)
        if job.is_finished:
            raise errors.Failure(
                f"job {name!r} has ended: it is {job.state}. Delete it before you submit it again"
            )
        return job

    async def _patch(self, job: models.Job, spec: Mapping[str, Any]) -> None:
        with refusals.explained(self.context):
            await self._api.patch(resources.JOBS.path(job.namespace, job.name), {"spec": spec})

    async def delete_job(self, name: str, *, delete_results: bool = False) -> None:
        """Delete a job and its objects. Claims stay.

        Raises:
            SpecError: `delete_results` is true.
        """
        if delete_results:
            raise load.SpecError(
                f"the results of {name!r} are in the claim of its checkpoints, which other jobs may"
                " use. Delete the job without delete_results, and the claim with kubectl delete pvc"
            )
        job = await self.get_job(name)
        with refusals.explained(self.context), contextlib.suppress(api_errors.NotFound):
            await self._api.delete(resources.JOBS, job.namespace, job.name, job.uid)


def _is_new(job: models.Job, last_jobs: dict[str, models.Job]) -> bool:
    """Whether this version of a job is new. From now on, it counts as seen."""
    previous, last_jobs[job.uid] = last_jobs.get(job.uid), job
    return previous is None or _version(previous) != _version(job)


def _version(job: models.Job) -> str:
    return str(job.manifest["metadata"]["resourceVersion"])


def _is_owned(body: api.Object, job: models.Job) -> bool:
    owners = body["metadata"].get("ownerReferences", [])
    return any(owner["uid"] == job.uid for owner in owners)


def _is_about(regarding: Mapping[str, Any], job: models.Job) -> bool:
    """Whether an event is about the job, a claim of it or an object that has the job's name."""
    kind, name = regarding.get("kind"), str(regarding.get("name", ""))
    if kind == names.KIND:
        return regarding.get("uid") == job.uid
    if kind == "PersistentVolumeClaim":
        return name in objects.claim_names(job)
    if kind == "Workload":
        return name == f"{names.SINGULAR}-{job.name}"
    return any(name.startswith(f"{job.name}-{role}-") for role in _ROLES) or name == job.name


def _place(replica: models.Replica) -> tuple[int, int]:
    role, _, index = replica.name.rpartition("-")
    order = _ROLES.index(role) if role in _ROLES else len(_ROLES)
    return order, int(index) if index.isdecimal() else 0
