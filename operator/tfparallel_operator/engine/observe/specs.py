"""Finds the spec of a job: its newest one, or the last usable one.

The API server may accept an edit that is unusable, and another version of the operator may have
other rules. Neither ends a running job, which continues with the record in its ConfigMap
(`core.pods.config`). The operator reads that record only when it needs it.
"""

import zlib

import orjson

from tfparallel_operator.api import gate, job_status, load, types
from tfparallel_operator.api_server import client, errors, resources
from tfparallel_operator.core import layout, observation
from tfparallel_operator.core.pods import config
from tfparallel_operator.engine.observe import jobs, records
from tfparallel_operator.engine.observe.job_memory import JobMemories

_MAX_RECORD_BYTES = 2 * gate.MAX_SPEC_BYTES
"""A record has defaults, too."""


class Specs:
    """Finds the spec of each job."""

    def __init__(self, api: client.Client, memories: JobMemories) -> None:
        self._api = api
        self._memories = memories

    def newest(self, body: jobs.Body) -> types.TFParallelJob:
        """Parse a job. Its CEL rules, the slowest part, are checked once per generation.

        Raises:
            load.SpecError: it is no valid job.
        """
        if gate.PROBLEM in body:
            raise load.SpecError(body[gate.PROBLEM])
        memory, metadata = self._memories.recall(jobs.key_of(body)), body["metadata"]
        spec = (metadata["uid"], metadata["generation"])
        if memory.valid_spec == spec:
            return load.read_job(body)
        job = load.parse_job(body)
        memory.valid_spec, memory.accepted_spec = spec, None
        return job

    async def invalid(
        self,
        body: jobs.Body,
        error: load.SpecError,
        *,
        has_pods: bool,
        first_port: int | None,
    ) -> observation.InvalidJob:
        """Return a job whose newest spec is unusable, with the last usable one.

        Args:
            body: the job with its newest spec.
            error: why that cannot be used.
            has_pods: whether the job has begun, whatever its status says.
            first_port: the first of the nodes' ports that are free for it; None: none are.

        Raises:
            load.StatusError: the job's status cannot be read.
            errors.ApiError: the record cannot be read.
        """
        status = load.read_status(body)
        problem = observation.SpecProblem(str(error), int(body["metadata"]["generation"]))
        newer = not status.attempt and load.is_of_newer_version(body)
        may_run = newer or bool(status.attempt) or has_pods
        accepted = await self._last_accepted(body, status) if may_run else None
        plan = None if accepted is None else layout.build(accepted, first_port=first_port)
        return observation.InvalidJob(problem, status, plan, newer)

    async def _last_accepted(
        self, body: jobs.Body, status: job_status.JobStatus
    ) -> types.TFParallelJob | None:
        generation = int(body["metadata"]["generation"])
        record = await self._record(body)
        if record is not None and record["generation"] < status.observed_generation:
            record = None  # The operator ended between the status and the record.
        if record is None and status.observed_generation == generation:
            # The job began with this spec, under rules of another version.
            record = {"generation": generation, "spec": body.get("spec") or {}}
        if record is None:
            return None
        metadata = {**body["metadata"], "generation": record["generation"]}
        try:
            return load.read_accepted_job({**body, "metadata": metadata, "spec": record["spec"]})
        except load.StatusError:
            raise
        except load.SpecError:
            return None

    async def _record(self, body: jobs.Body) -> jobs.Body | None:
        """Read the record of a job's spec; None when there is none."""
        key, metadata = jobs.key_of(body), body["metadata"]
        memory = self._memories.recall(key)
        uid, packed = memory.accepted_spec or ("", b"")
        if uid == metadata["uid"]:
            return _parse_record(zlib.decompress(packed))
        path = resources.CONFIG_MAPS.path(key.namespace, config.name(key.name))
        try:
            config_map = await self._api.get(path)
        except errors.NotFound:
            return None
        owner = records.owner(config_map)
        content = (config_map.get("data") or {}).get(config.SPEC_KEY)
        if owner is None or owner.uid != metadata["uid"] or content is None:
            return None
        record = _parse_record(content.encode())
        if record is not None:
            memory.accepted_spec = metadata["uid"], zlib.compress(content.encode(), 1)
        return record


def _parse_record(content: bytes) -> jobs.Body | None:
    """Return the spec in a record, which passes the gate; None: somebody has overwritten it."""
    if len(content) > _MAX_RECORD_BYTES:
        return None
    try:
        written: jobs.Body = orjson.loads(content)
        record = {"generation": int(written["generation"]), "spec": dict(written["spec"])}
    except (ValueError, KeyError, TypeError):
        return None
    return None if gate.PROBLEM in gate.admit(record) else record
