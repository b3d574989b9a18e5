"""The spec that a job has: its newest, or the last one that could be used.

An edit may pass the API server and be of no use all the same, and another version of the operator
may have other rules. Neither ends what runs: the job goes on with the spec on record in its
ConfigMap (`core.build.config`), which is read when it is needed and no sooner.
"""

import dataclasses
import json

from tfparallel_operator.api import load, types
from tfparallel_operator.api_server import client, errors, resources
from tfparallel_operator.core import build, observation
from tfparallel_operator.engine.observe import jobs, records
from tfparallel_operator.engine.workqueue import queue


@dataclasses.dataclass(frozen=True, slots=True)
class Accepted:
    """A job with a spec that can be used, and what is wrong with its newest one."""

    job: types.TFParallelJob | None
    """None: no spec that can be used is known."""
    problem: observation.Problem | None = None


class Specs:
    """Finds the spec of each job."""

    def __init__(self, api: client.Client) -> None:
        self._api = api
        self._valid: dict[queue.Key, tuple[str, int]] = {}
        """Uid and generation of the jobs whose spec is known to be valid."""
        self._records: dict[queue.Key, tuple[str, jobs.Body]] = {}
        """Uid and record of the jobs whose newest spec cannot be used."""

    def forget(self, key: queue.Key) -> None:
        """Drop what is known of a job that is gone."""
        self._valid.pop(key, None)
        self._records.pop(key, None)

    def newest(self, body: jobs.Body) -> types.TFParallelJob:
        """Read a job; its rules are looked at once for each generation, for they take the longest.

        Raises:
            load.SpecError: it is no valid job.
        """
        key, metadata = jobs.key_of(body), body["metadata"]
        spec = (metadata["uid"], metadata["generation"])
        if self._valid.get(key) == spec:
            return load.read_job(body)
        job = load.parse_job(body)
        self._valid[key] = spec
        self._records.pop(key, None)
        return job

    async def last_accepted(self, body: jobs.Body, error: load.SpecError) -> Accepted:
        """Return a job that has begun with the last spec that could be used.

        Args:
            body: the job with its newest spec.
            error: why that cannot be used.

        Raises:
            load.StatusError: the job's status cannot be read.
            errors.ApiError: the record cannot be read.
        """
        generation = int(body["metadata"]["generation"])
        problem = observation.Problem(str(error), generation)
        status = load.read_status(body)
        record = await self._record(body)
        if record is not None and record["generation"] < status.observed_generation:
            record = None  # The operator ended between the status and the record.
        if record is None and status.observed_generation == generation:
            # The job began with this spec, under rules of another version.
            record = {"generation": generation, "spec": body.get("spec") or {}}
        if record is None:
            return Accepted(None, problem)
        metadata = {**body["metadata"], "generation": record["generation"]}
        try:
            job = load.read_accepted_job({**body, "metadata": metadata, "spec": record["spec"]})
        except load.StatusError:
            raise
        except load.SpecError:
            return Accepted(None, problem)
        return Accepted(job, problem)

    async def _record(self, body: jobs.Body) -> jobs.Body | None:
        """Read the record of a job's spec; None when there is none."""
        key, metadata = jobs.key_of(body), body["metadata"]
        uid, record = self._records.get(key, ("", None))
        if uid == metadata["uid"]:
            return record
        path = resources.CONFIG_MAPS.path(key.namespace, build.config_name_of(key.name))
        try:
            config_map = await self._api.get(path)
        except errors.NotFound:
            return None
        owner = records.owner(config_map)
        content = (config_map.get("data") or {}).get(build.SPEC_KEY)
        if owner is None or owner.uid != metadata["uid"] or content is None:
            return None
        try:
            read: jobs.Body = json.loads(content)
            self._records[key] = (
                metadata["uid"],
                {
                    "generation": int(read["generation"]),
                    "spec": dict(read["spec"]),
                },
            )
        except (ValueError, KeyError, TypeError):
            return None  # Somebody has written over it.
        return self._records[key][1]
