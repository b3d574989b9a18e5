"""Pytest fixtures: one cluster of a kind per test session, ended with it.

A cluster that already runs under the name in the fixture's environment variable is used and left
running, which saves its start while writing tests:

python -m testing.cluster up --mode full --name mine
TFPARALLEL_FULL_CLUSTER=mine pytest --tier e2e
"""

import contextlib
import os
from collections.abc import Generator, Iterator

import pytest

from testing.cluster import (
    binaries,
    console,
    coscheduling,
    handle,
    kind,
    kuberouter,
    kueue,
    lifecycle,
    process,
    settings,
)

NODES = 4

PROGRAMS = {
    "s3": binaries.OBJECT_STORE,
    "light_cluster": binaries.LIGHT,
    "light_cluster_with_nodes": binaries.LIGHT,
    "upgrade_cluster": binaries.LIGHT,
    "chart_cluster": binaries.LIGHT,
    "gang_scheduling_cluster": binaries.LIGHT,
    "older_cluster": binaries.of_release(settings.Release.OLDEST, binaries.LIGHT),
    "alpha_gangs_cluster": binaries.of_release(settings.Release.ALPHA_GANGS, binaries.LIGHT),
    "coscheduling_cluster": (*binaries.LIGHT, coscheduling.MODULE),
    "kueue_cluster": (*binaries.LIGHT, kueue.MODULE),
}
PROGRAMS_FOR_ROOT = {
    "full_cluster": binaries.FULL,
    "full_cluster_with_policies": (*binaries.FULL, kuberouter.MODULE),
    "full_cluster_with_queues": (*binaries.FULL, coscheduling.MODULE, kueue.MODULE),
}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build before the first test starts: minutes that no test's time limit should count."""
    if session.config.option.collectonly:
        return
    used = {name for item in session.items for name in _fixtures(item)}
    programs = PROGRAMS | (PROGRAMS_FOR_ROOT if os.geteuid() == 0 else {})
    programs_needed = dict.fromkeys(
        program for name in sorted(used & {*programs}) for program in programs[name]
    )
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        binaries.ensure(programs_needed)


def _fixtures(item: pytest.Item) -> set[str]:
    """The fixtures of a test, and those that its parameters name."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = {value for value in parameters if isinstance(value, str)}
    return {*getattr(item, "fixturenames", ()), *named}


@pytest.fixture(scope="session")
def cluster_programs() -> None:
    """For tests that start and end clusters by themselves."""
    binaries.ensure(binaries.LIGHT)


@pytest.fixture(scope="session")
def light_cluster() -> Iterator[handle.Cluster]:
    """An API server alone: pods stay as they are until a test patches their status."""
    yield from running("LIGHT", settings.Light())


@pytest.fixture(scope="session")
def older_cluster() -> Iterator[handle.Cluster]:
    """The same with the API server of the oldest Kubernetes that the product supports."""
    yield from running("OLDER", settings.Light(release=settings.Release.OLDEST))


@pytest.fixture(scope="session")
def light_cluster_with_nodes() -> Iterator[handle.Cluster]:
    """Controllers, a scheduler and KWOK nodes with four GPUs each: pods become Running."""
    yield from running("NODES", settings.Light(controllers=True, nodes=NODES, jobs=True))


@pytest.fixture(scope="session")
def upgrade_cluster() -> Iterator[handle.Cluster]:
    """An API server alone whose custom resource changes under the test."""
    yield from running("UPGRADE", settings.Light())


@pytest.fixture(scope="session")
def chart_cluster() -> Iterator[handle.Cluster]:
    """An API server alone, to which a chart brings the custom resource."""
    yield from running("CHART", settings.Light())


@pytest.fixture(scope="session")
def gang_scheduling_cluster() -> Iterator[handle.Cluster]:
    """One KWOK node of four GPUs, and the scheduler of Kubernetes with gangs switched on."""
    yield from running("GANGS", settings.Light(controllers=True, nodes=1, gang_scheduling=True))


@pytest.fixture(scope="session")
def alpha_gangs_cluster() -> Iterator[handle.Cluster]:
    """The same of the Kubernetes whose gangs are of v1alpha2."""
    release = settings.Release.ALPHA_GANGS
    cluster_settings = settings.Light(
        controllers=True, nodes=1, gang_scheduling=True, release=release
    )
    yield from running("ALPHAGANGS", cluster_settings)


@pytest.fixture(scope="session")
def coscheduling_cluster() -> Iterator[handle.Cluster]:
    """Two KWOK nodes of four GPUs each, and the scheduler of the scheduler-plugins."""
    yield from running("COSCHEDULING", settings.Light(controllers=True, nodes=2, coscheduling=True))


@pytest.fixture(scope="session")
def kueue_cluster() -> Iterator[handle.Cluster]:
    """Two KWOK nodes of four GPUs each, and Kueue."""
    yield from running("KUEUE", settings.Light(controllers=True, nodes=2, kueue=True))


@pytest.fixture(scope="session")
def full_cluster() -> Iterator[handle.Cluster]:
    """A cluster that runs containers: our own where this is root, else kind on Docker."""
    if os.geteuid() == 0:
        yield from running("FULL", settings.Full())
    elif kind.docker_answers():
        yield from running("FULL", settings.Kind())
    else:
        pytest.skip("A cluster that runs containers needs root or a Docker engine.")


@pytest.fixture(scope="session")
def full_cluster_with_policies() -> Iterator[handle.Cluster]:
    """A cluster that runs containers, in a network that enforces NetworkPolicies."""
    if os.geteuid() != 0:
        pytest.skip("A network that enforces policies needs root.")
    yield from running("POLICIES", settings.Full(policies=True))


@pytest.fixture(scope="session")
def full_cluster_with_queues() -> Iterator[handle.Cluster]:
    """A cluster that runs containers, with Kueue and the scheduler of the scheduler-plugins."""
    if os.geteuid() != 0:
        pytest.skip("Controllers of our own builds need root.")
    yield from running("QUEUES", settings.Full(coscheduling=True, kueue=True))


def running(purpose: str, cluster_settings: settings.Settings) -> Generator[handle.Cluster]:
    """A cluster of this session's own name, or the one that the environment names."""
    chosen = os.environ.get(f"TFPARALLEL_{purpose}_CLUSTER")
    name = chosen or f"pytest-{purpose.lower()}-{os.getpid()}"
    end_abandoned()
    if chosen is None:
        lifecycle.down(name)  # left behind by a session whose process id the system has reused
    borrowed = lifecycle.get(name) is not None
    cluster = lifecycle.up(name, cluster_settings)
    try:
        yield cluster
    finally:
        if not borrowed:
            lifecycle.down(name)


def end_abandoned() -> None:
    """End clusters whose test session was killed before it could do so."""
    for name in lifecycle.names():
        session = lifecycle.SESSION_NAME.fullmatch(name)
        if session is not None and process.started_at(int(session.group(1))) is None:
            console.say(f"{name} was left behind by a test session: ending it")
            lifecycle.down(name)
