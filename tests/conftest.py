"""Makes the test clusters available to every tier."""

import signal

import hypothesis
import pytest

pytest_plugins = ["tests.cluster.fixtures"]

FULL_CLUSTER = "full_cluster"

# A shell starts what runs in its background with SIGINT ignored, and so would we all the programs
# that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run and no limits of time, on any machine; to look for new ones, give
# `--hypothesis-profile default`.
hypothesis.settings.load_profile("ci")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Share the tests out by files among the workers of pytest-xdist, the longest part first.

    Its plugin reads the marks afterwards. All tests with real pods share one cluster.
    """
    for item in items:
        group = FULL_CLUSTER if _has_real_pods(item) else item.path.stem
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: not _has_real_pods(item))


def _has_real_pods(item: pytest.Item) -> bool:
    return item.get_closest_marker("e2e") is not None
