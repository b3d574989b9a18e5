"""Whether the installation's restrictions allow what a job uses; this reads labels of Secrets.

The operator requests only the metadata of a Secret, so it never receives a Secret's value.
"""

import re
import time
from collections.abc import Callable, Mapping

from tfparallel_operator.api_server import client, errors, resources
from tfparallel_operator.core import installation, observation
from tfparallel_operator.core.layout import Layout
from tfparallel_operator.core.pods import restrictions
from tfparallel_operator.engine.observe.job_memory import JobMemories
from tfparallel_operator.engine.workqueue import queue

LABELS_SECONDS = 15.0
"""How long the labels of a Secret are cached."""

MAX_SECRETS = 1000
"""Maximum number of Secrets in the cache."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""A valid name of a Secret, which is safe in a path."""

_Labels = Mapping[str, str] | None


class Permissions:
    """Compares jobs with the installation's restrictions."""

    def __init__(
        self,
        api: client.Client,
        settings: installation.InstallationSettings,
        memories: JobMemories,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._settings = settings
        self._clock = clock
        self._memories = memories
        self._labels: dict[tuple[str, str], tuple[float, _Labels]] = {}

    async def find(self, job: Layout | observation.InvalidJob) -> str:
        """Say why a job may have no new pods; empty: it may.

        Raises:
            errors.ApiError: a Secret cannot be read.
        """
        limits = self._settings.restrictions
        if limits == installation.Restrictions():
            return ""
        if not isinstance(job, observation.InvalidJob):
            layout, uses = job, self._uses_of(job)
        elif job.accepted is not None:
            # The spec comes from a ConfigMap, which somebody may have changed since.
            layout = job.accepted
            uses = restrictions.find_uses(layout, self._settings)
        else:
            return ""
        if limits.secret_labels and (problem := restrictions.find_many_secrets(uses)):
            return problem
        secrets: dict[str, _Labels] = {}
        for use in uses:
            if limits.secret_labels and use.kind is restrictions.Kind.SECRET:
                secrets[use.value] = await self._read(layout.job.metadata.namespace, use.value)
            # The first problem ends the requests.
            if problem := restrictions.find_problem(use, limits, secrets):
                return problem
        return ""

    def _uses_of(self, layout: Layout) -> tuple[restrictions.Use, ...]:
        metadata = layout.job.metadata
        memory = self._memories.recall(queue.Key(metadata.namespace, metadata.name))
        version = metadata.uid, metadata.generation
        if memory.uses is None or memory.uses[0] != version:
            memory.uses = version, restrictions.find_uses(layout, self._settings)
        return memory.uses[1]

    async def _read(self, namespace: str, name: str) -> _Labels:
        """Return the labels of a Secret; None: it does not exist."""
        read_at, labels = self._labels.get((namespace, name), (None, None))
        now = self._clock()
        if read_at is not None and now - read_at < LABELS_SECONDS:
            return labels
        labels = await self._ask(namespace, name) if _NAME.fullmatch(name) else None
        if len(self._labels) >= MAX_SECRETS:
            self._labels.clear()
        self._labels[namespace, name] = now, labels
        return labels

    async def _ask(self, namespace: str, name: str) -> _Labels:
        path = resources.SECRETS.path(namespace, name)
        try:
            answer = await self._api.get(path, metadata_only=True)
        except errors.NotFound:
            return None
        labels: Mapping[str, str] = answer["metadata"].get("labels") or {}
        return labels
