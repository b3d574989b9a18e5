"""Jobs that an older definition stored: no rule at the root keeps a status from being written."""

import copy
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from testing import waiting
from testing.operator import objects
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names, rules, schema
from tfparallel_operator.api_server import errors, resources

LONG = "a" * 55
STORED = ("1st-run", "a.b", LONG)
"""Names of jobs that a rule at the root refuses today."""


def _definition(group: str, *, has_rules: bool) -> dict[str, Any]:
    """Return the definition under another group, as today or as before it had rules."""
    definition = copy.deepcopy(schema.custom_resource_definition())
    definition["metadata"]["name"] = f"{names.PLURAL}.{group}"
    definition["spec"]["group"] = group
    del definition["spec"]["names"]["shortNames"]
    del definition["spec"]["names"]["categories"]
    [version] = definition["spec"]["versions"]
    if not has_rules:
        version["schema"] = {
            "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        }
    return definition


@pytest.fixture
def group(namespace: Namespace) -> Iterator[str]:
    """A group of the test's own: the definition of others stays as it is."""
    group = f"g{uuid.uuid4().hex[:8]}.example.com"
    definition = _definition(group, has_rules=False)
    namespace.kubectl("apply", "-f", "-", body=definition)
    name = definition["metadata"]["name"]
    namespace.cluster.wait_established(name)
    yield group
    namespace.kubectl("delete", "crd", name)


async def test_a_stored_job_that_breaks_a_root_rule_gets_a_status(
    namespace: Namespace, group: str
) -> None:
    kind = resources.Resource(f"{group}/{names.VERSION}", names.PLURAL)

    def job(name: str) -> dict[str, Any]:
        return {**objects.job(name), "apiVersion": f"{group}/{names.VERSION}"}

    for name in STORED:
        await namespace.api.create(kind, namespace.name, job(name))
    namespace.kubectl("apply", "-f", "-", body=_definition(group, has_rules=True))

    async def refused() -> bool:
        name = f"2nd-{uuid.uuid4().hex[:8]}"
        try:
            await namespace.api.create(kind, namespace.name, job(name))
        except errors.Invalid as error:
            return "must begin with a lower-case letter" in str(error)
        return False

    await waiting.until_async(refused, "today's rules apply")
    for name in STORED:
        path = kind.path(namespace.name, name)
        labels = {"metadata": {"labels": {"team": "vision"}, "finalizers": ["example.com/x"]}}
        await namespace.api.patch(path, labels)
        status = {"status": {"state": "Failed", "attempt": 1}}
        await namespace.api.patch(kind.path(namespace.name, name, "status"), status)
        stored = await namespace.api.patch(path, {"metadata": {"finalizers": None}})
        assert stored["status"] == status["status"]
    too_long = kind.path(namespace.name, LONG)
    roles = {"Worker": {"replicas": 200, "minReplicas": 1, "maxReplicas": 300}}
    with pytest.raises(errors.Invalid, match=r"metadata\.name is too long"):
        await namespace.api.patch(too_long, {"spec": {"tfReplicaSpecs": roles}})


def test_every_rule_at_the_root_spares_what_is_stored() -> None:
    entries = schema.job_schema()[rules.VALIDATIONS]
    assert entries
    for entry in entries:
        assert entry["rule"].startswith("oldSelf.hasValue() && (")
        assert entry["optionalOldSelf"] is True
