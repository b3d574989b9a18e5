"""What the engine learns to tell whether the installation lets a job have what it names."""

from typing import Any

import pytest

from testing import clock
from testing.operator import builders, memory_api
from tfparallel_operator.api_server import client
from tfparallel_operator.core import installation, layout, observation
from tfparallel_operator.core.layout import Layout
from tfparallel_operator.core.pods import restrictions
from tfparallel_operator.engine.observe import permissions
from tfparallel_operator.engine.observe.job_memory import JobMemories

LABELS = {"use": "jobs"}


class Secrets(memory_api.MemoryApi):
    """An API server with one Secret, which counts what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, bool]] = []
        self.labels: dict[str, str] = {}

    async def get(self, path: str, *, metadata_only: bool = False) -> client.Object:
        self.asked.append((path, metadata_only))
        return {"metadata": {"name": "hub", "labels": self.labels}}


def a_job(**pod_spec: Any) -> Layout:
    template = {"spec": {"containers": [{"name": "tensorflow", "image": "i"}], **pod_spec}}
    role = {"replicas": 1, "template": template}
    return layout.build(builders.a_job(worker=1, spec={"tfReplicaSpecs": {"Worker": role}}))


def naming(secret: str) -> Layout:
    return a_job(volumes=[{"name": "v", "secret": {"secretName": secret}}])


def the_permissions(api: Secrets, time: clock.Clock, **limits: Any) -> permissions.Permissions:
    restricted = installation.Restrictions(**limits)
    settings = installation.InstallationSettings(trainer_image="i", restrictions=restricted)
    return permissions.Permissions(api, settings, JobMemories(), time)


async def test_labels_are_read_again_after_a_while_and_nothing_but_metadata() -> None:
    api, time = Secrets(), clock.Clock()
    allowed = the_permissions(api, time, secret_labels=LABELS)
    for _ in range(3):
        assert "names the Secret 'hub'" in await allowed.find(naming("hub"))
    assert api.asked == [("/api/v1/namespaces/ns/secrets/hub", True)]
    api.labels = LABELS
    time.now += permissions.LABELS_SECONDS
    assert await allowed.find(naming("hub")) == ""
    assert len(api.asked) == 2


async def test_the_first_secret_that_is_not_allowed_ends_the_requests() -> None:
    api = Secrets()
    volumes = [{"name": f"v{n}", "secret": {"secretName": f"hub-{n}"}} for n in range(100)]
    allowed = the_permissions(api, clock.Clock(), secret_labels=LABELS)
    assert "'hub-0'" in await allowed.find(a_job(volumes=volumes))
    assert len(api.asked) == 1


async def test_a_job_that_names_very_many_secrets_has_none_of_them_read() -> None:
    """The operator would do nothing else: labels are good enough for 15 s."""
    api = Secrets()
    api.labels = LABELS
    most = restrictions.MAX_SECRETS
    volumes = [{"name": f"v{n}", "secret": {"secretName": f"hub-{n}"}} for n in range(most + 1)]
    allowed = the_permissions(api, clock.Clock(), secret_labels=LABELS)
    assert f"names {most + 1} Secrets" in await allowed.find(a_job(volumes=volumes))
    assert api.asked == []
    allowed = the_permissions(api, clock.Clock(), secret_labels=LABELS)
    assert await allowed.find(a_job(volumes=volumes[1:])) == ""


@pytest.mark.parametrize("name", ["../hub", "..", "hub/x", "hub?x=y", "Hub", "h" * 254, "hub\n"])
async def test_what_is_no_name_of_a_secret_is_never_asked_for(name: str) -> None:
    """In the path of a request it would lead to other objects."""
    api = Secrets()
    api.labels = LABELS
    allowed = the_permissions(api, clock.Clock(), secret_labels=LABELS)
    assert await allowed.find(naming(name))
    assert api.asked == []


async def test_without_restrictions_nothing_is_asked() -> None:
    api = Secrets()
    assert await the_permissions(api, clock.Clock()).find(naming("hub")) == ""
    limits = {"service_accounts": ("default",)}
    assert await the_permissions(api, clock.Clock(), **limits).find(naming("hub")) == ""
    assert api.asked == []


async def test_a_spec_on_record_is_looked_at_as_it_is_now() -> None:
    """Whoever may write ConfigMaps may have changed it since, under the same generation."""
    forbidden = installation.HostAccess.FORBIDDEN
    allowed = the_permissions(Secrets(), clock.Clock(), host_access=forbidden)
    job, changed = a_job(), a_job(hostPID=True)
    assert job.job.metadata == changed.job.metadata
    assert await allowed.find(job) == ""
    problem = observation.SpecProblem("no such strategy", 2)
    invalid = observation.InvalidJob(problem, job.job.status, changed)
    assert "hostPID" in await allowed.find(invalid)
    assert await allowed.find(observation.InvalidJob(problem, job.job.status)) == ""
