"""What a worker of pytest-xdist runs as a whole: a file, or all files with real pods.

Scopes with most tests come first, as pytest-xdist orders them. With the seconds of each file, the
tests took no less time: the cluster with real pods bounds them, and its scope is among the first.
"""

from typing import Any

import pytest
from xdist.scheduler import loadscope

REAL_PODS = "real pods"
WITH_REAL_PODS = ("tests/e2e/", "tests/testing/test_cluster_full")


class Scopes(loadscope.LoadScopeScheduling):  # type: ignore[misc]
    """A worker takes a file at a time; files with real pods are one, for they share a cluster."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scopes:
    return Scopes(config, log)


def scope_of(nodeid: str) -> str:
    """Return the name of a test's scope."""
    file = nodeid.partition("::")[0]
    return REAL_PODS if file.startswith(WITH_REAL_PODS) else file
