"""Makes the test clusters available to every tier."""

import signal
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import loadscope

pytest_plugins = ["testing.cluster.fixtures"]

WITH_REAL_PODS = ("tests/e2e/", "tests/testing/test_cluster_full")

# A shell starts what runs in its background with SIGINT ignored, and so would we all the programs
# that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run and no limits of time, on any machine; to look for new ones, give
# `--hypothesis-profile default`.
hypothesis.settings.load_profile("ci")


class Files(loadscope.LoadScopeScheduling):  # type: ignore[misc]
    """Shares files out among the workers of pytest-xdist; all with real pods share one cluster."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "real pods" if file.startswith(WITH_REAL_PODS) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Files:
    return Files(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that the workers end at about the same time."""
    items.sort(key=lambda item: not item.nodeid.startswith(WITH_REAL_PODS))
