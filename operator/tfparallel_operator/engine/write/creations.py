"""Creates the objects of a job, and finds the owners of objects that have the same names."""

import itertools
from collections.abc import Iterable, Sequence

from tfparallel_operator.api import names
from tfparallel_operator.api_server import client, errors, resources
from tfparallel_operator.core import decision
from tfparallel_operator.core.life import obstacles
from tfparallel_operator.engine.observe import owned, records
from tfparallel_operator.engine.write import dependencies, priorities, refusals, writes

MAX_PROBES = 64
"""Maximum number of names that are checked after one is found to be taken."""

_KNOWN_BY_METADATA = frozenset(
    {
        resources.PODS,
        resources.SERVICES,
        resources.CONFIG_MAPS,
        resources.NETWORK_POLICIES,
        resources.CLAIMS,
    }
)
"""Resources for whose creation the metadata of the answer is enough."""


class Creator:
    """Creates objects, after checking for each that this operator may write."""

    def __init__(self, engine: dependencies.Dependencies) -> None:
        self._engine = engine
        self._api = engine.api
        self._children = engine.children
        self._may_write = engine.may_write

    async def create(self, manifests: Sequence[decision.Manifest]) -> writes.ApplyResult:
        """Create objects in order, up to the first failure.

        Raises:
            errors.Conflict: another installation of the operator acts on the job.
            errors.ApiError: a creation failed for an unknown reason.
        """
        waves = _waves(manifests)
        for number, wave in enumerate(waves):
            outcomes = await writes.run_at_once(self._create_one, wave)
            outcome = writes.find_worst(outcomes)
            if outcome.holders:
                return await self._name_holders(outcome, itertools.chain(*waves[number:]))
            if outcome != writes.DONE:
                return outcome
        return writes.DONE

    async def _name_holders(
        self, first: writes.ApplyResult, manifests: Iterable[decision.Manifest]
    ) -> writes.ApplyResult:
        """Find all objects that have names that the job needs."""
        now = self._engine.clock()
        refusal = obstacles.explain(first.holders, now)
        if refusal.reason is names.Reason.NAME_CONFLICT:
            probed = list(itertools.islice(manifests, MAX_PROBES))
            outcomes = await writes.run_at_once(self._probe, probed, on_all=True)
            holders = [
                holder
                for outcome in outcomes
                if isinstance(outcome, writes.ApplyResult)
                for holder in outcome.holders
            ]
            refusal = obstacles.explain(holders or first.holders, now)
        return writes.ApplyResult(refusal)

    async def _probe(self, manifest: decision.Manifest) -> writes.ApplyResult:
        """Check whether another object has the name, without creating anything."""
        resource = owned.BY_TYPE[manifest["apiVersion"], manifest["kind"]]
        try:
            return await self._find_holder(self._children.served(resource), manifest)
        except errors.NotFound:
            return writes.DONE

    async def _create_one(self, manifest: decision.Manifest) -> writes.ApplyResult:
        resource = owned.BY_TYPE[manifest["apiVersion"], manifest["kind"]]
        namespace = manifest["metadata"]["namespace"]
        served = self._children.served(resource)
        manifest = {**manifest, "apiVersion": served.api_version}
        self._may_write()
        try:
            if resource == resources.WORKLOADS:
                manifest = await priorities.with_priority(self._api, manifest)
            is_brief = resource in _KNOWN_BY_METADATA
            created = await self._api.create(served, namespace, manifest, metadata_only=is_brief)
        except errors.AlreadyExists:
            return await self._find_holder(served, manifest)
        except errors.Invalid as error:
            if resource == resources.WORKLOADS:  # Users can correct its labels, unlike a spec.
                return writes.ApplyResult(refusals.refused(str(error)), error.retry_after)
            return writes.ApplyResult(refusals.invalid(manifest, error), error.retry_after)
        except errors.NotFound as error:
            if resource not in owned.OPTIONAL:
                raise
            return writes.ApplyResult(refusals.not_installed(manifest), error.retry_after)
        except errors.Refused as error:
            return writes.ApplyResult(refusals.refused(str(error)), error.retry_after)
        except errors.Unavailable as error:
            return writes.ApplyResult(refusals.unavailable(manifest, error), error.retry_after)
        if is_brief:
            created = {**manifest, "metadata": created["metadata"]}
        labels = created["metadata"].get("labels") or {}
        if labels.get(names.LABEL_MANAGED_BY) != names.MANAGED_BY:  # A webhook has changed it.
            holder = refusals.hold(created, manifest, obstacles.Whose.UNLABELED)
            return writes.ApplyResult(holders=(holder,))
        return self._learn(resource, created)

    def _learn(self, resource: resources.Resource, answer: client.Object) -> writes.ApplyResult:
        if resource != resources.CLAIMS:  # No informer follows claims: see `core.pods.claims`.
            self._children.learn(resource, answer)
        return writes.DONE

    async def _find_holder(
        self, resource: resources.Resource, manifest: decision.Manifest
    ) -> writes.ApplyResult:
        """Adopt the existing object if it is the job's own; else return its holder."""
        metadata = manifest["metadata"]
        existing = await self._api.get(resource.path(metadata["namespace"], metadata["name"]))
        if resource == resources.CLAIMS:
            return _check_claim(existing, manifest)
        whose = _find_whose(existing, manifest)
        if whose is not None:
            return writes.ApplyResult(holders=(refusals.hold(existing, manifest, whose),))
        self._learn(resource, existing)
        if (other := records.installation(existing)) not in ("", records.installation(manifest)):
            raise errors.Conflict(f"installation {other} of the operator acts on the job")
        return writes.DONE


def _waves(manifests: Sequence[decision.Manifest]) -> list[list[decision.Manifest]]:
    """Order creations: the objects that pods need, one pod of each role, then the other pods.

    So an invalid template is found before a thousand pods exist.
    """
    others = [manifest for manifest in manifests if manifest["kind"] != "Pod"]
    pods = [manifest for manifest in manifests if manifest["kind"] == "Pod"]
    if len(pods) <= writes.MAX_WRITES:
        return [others, pods]
    first: dict[str, decision.Manifest] = {}
    remaining = [
        pod
        for pod in pods
        if first.setdefault(pod["metadata"]["labels"][names.LABEL_ROLE], pod) is not pod
    ]
    return [others, list(first.values()), remaining]


def _check_claim(existing: client.Object, manifest: decision.Manifest) -> writes.ApplyResult:
    """Adopt an existing claim, if this job or an earlier one of its name created it."""
    holder = refusals.hold(existing, manifest, obstacles.Whose.EARLIER)
    if records.deleting(existing):
        return writes.ApplyResult(holders=(holder,))
    labels = existing["metadata"].get("labels") or {}
    if labels.get(names.LABEL_JOB) != manifest["metadata"]["labels"][names.LABEL_JOB]:
        return writes.ApplyResult(refusals.foreign_claim(manifest))
    owner = records.owner(existing)
    expected = manifest["metadata"].get("ownerReferences") or ()
    is_of_other = owner and owner.uid not in [reference["uid"] for reference in expected]
    return writes.ApplyResult(holders=(holder,)) if is_of_other else writes.DONE


def _find_whose(existing: client.Object, manifest: decision.Manifest) -> obstacles.Whose | None:
    """Return the owner of an object whose name the job needs; None: the job itself."""
    job, owner = manifest["metadata"]["ownerReferences"][0], records.owner(existing)
    if records.tfjob(existing) == job["name"]:
        return obstacles.Whose.TFJOB
    if owner is None or owner.name != job["name"]:
        return obstacles.Whose.OTHER
    labels = existing["metadata"].get("labels") or {}
    if labels.get(names.LABEL_MANAGED_BY) != names.MANAGED_BY:
        return obstacles.Whose.UNLABELED
    if owner.uid != job["uid"] or not _same_attempt(existing, manifest):
        return obstacles.Whose.EARLIER
    return obstacles.Whose.EARLIER if records.deleting(existing) else None


def _same_attempt(existing: client.Object, manifest: decision.Manifest) -> bool:
    needed = manifest["metadata"]["labels"]
    labels = existing["metadata"].get("labels") or {}
    return all(
        labels.get(label) == needed.get(label)
        for label in (names.LABEL_ATTEMPT, names.LABEL_REPLICA_ATTEMPT)
    )
