"""Pytest fixtures: one cluster of a kind per test session, ended with it.

A cluster that already runs under the name in the fixture's environment variable is used and left
running, which saves its start while writing tests:

python -m testing.cluster up --mode full --name mine
TFPARALLEL_FULL_CLUSTER=mine pytest --tier e2e
"""

import contextlib
import os
import re
from collections.abc import Iterator

import pytest

from testing.cluster import (
    binaries,
    console,
    handle,
    kind,
    kuberouter,
    lifecycle,
    process,
    settings,
)

NODES = 4
LIGHT_FIXTURES = {"light_cluster", "light_cluster_with_nodes"}
OWN_NAME = re.compile(r"pytest-[a-z]+-(\d+)")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build before the first test starts: minutes that no test's time limit should count."""
    if session.config.option.collectonly:
        return
    used = {name for item in session.items for name in _fixtures(item)}
    wanted = [*binaries.LIGHT] if used & LIGHT_FIXTURES else []
    if "older_cluster" in used:
        wanted += binaries.OLDER
    if "full_cluster" in used and os.geteuid() == 0:
        wanted += binaries.FULL
    if "full_cluster_with_policies" in used and os.geteuid() == 0:
        wanted.append(kuberouter.MODULE)
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        binaries.ensure(wanted)


def _fixtures(item: pytest.Item) -> set[str]:
    """The fixtures of a test, and those that its parameters name."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = {value for value in parameters if isinstance(value, str)}
    return {*getattr(item, "fixturenames", ()), *named}


@pytest.fixture(scope="session")
def light_cluster() -> Iterator[handle.Cluster]:
    """An API server alone: pods stay as they are until a test patches their status."""
    yield from _running("LIGHT", settings.Light())


@pytest.fixture(scope="session")
def older_cluster() -> Iterator[handle.Cluster]:
    """The same with the API server of the oldest Kubernetes that the product supports."""
    yield from _running("OLDER", settings.Light(older=True))


@pytest.fixture(scope="session")
def light_cluster_with_nodes() -> Iterator[handle.Cluster]:
    """Controllers, a scheduler and KWOK nodes with four GPUs each: pods become Running."""
    yield from _running("NODES", settings.Light(controllers=True, nodes=NODES))


@pytest.fixture(scope="session")
def full_cluster() -> Iterator[handle.Cluster]:
    """A cluster that runs containers: our own where this is root, else kind on Docker."""
    if os.geteuid() == 0:
        yield from _running("FULL", settings.Full())
    elif kind.docker_answers():
        yield from _running("FULL", settings.Kind())
    else:
        pytest.skip("A cluster that runs containers needs root or a Docker engine.")


@pytest.fixture(scope="session")
def full_cluster_with_policies() -> Iterator[handle.Cluster]:
    """A cluster that runs containers, in a network that enforces NetworkPolicies."""
    if os.geteuid() != 0:
        pytest.skip("A network that enforces policies needs root.")
    yield from _running("POLICIES", settings.Full(policies=True))


def _running(purpose: str, wanted: settings.Settings) -> Iterator[handle.Cluster]:
    chosen = os.environ.get(f"TFPARALLEL_{purpose}_CLUSTER")
    name = chosen or f"pytest-{purpose.lower()}-{os.getpid()}"
    end_abandoned()
    borrowed = lifecycle.get(name) is not None
    cluster = lifecycle.up(name, wanted)
    try:
        yield cluster
    finally:
        if not borrowed:
            lifecycle.down(name)


def end_abandoned() -> None:
    """End clusters whose test session was killed before it could do so."""
    for name in lifecycle.names():
        session = OWN_NAME.fullmatch(name)
        if session is not None and process.started_at(int(session.group(1))) is None:
            console.say(f"{name} was left behind by a test session: ending it")
            lifecycle.down(name)
