"""Modules whose tests run on the newest and on the oldest Kubernetes that the product supports."""

import pytest

ON_BOTH_VERSIONS = ("test_crd", "test_crd_refusals", "test_life")

LONG_ON_THE_OLDEST = "test_life"
ALWAYS_ON_THE_OLDEST = "test_a_job_goes_from_pending_to_running_to_succeeded"
"""One life says whether the oldest server takes what the operator sends; the others are long."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize the cluster of the modules that are tested on two versions."""
    module = metafunc.module.__name__.rpartition(".")[2]
    if module in ON_BOTH_VERSIONS and "cluster" in metafunc.fixturenames:
        is_long = (
            module == LONG_ON_THE_OLDEST and metafunc.function.__name__ != ALWAYS_ON_THE_OLDEST
        )
        marks = pytest.mark.long if is_long else ()
        clusters = [
            pytest.param("light_cluster", id="newest"),
            pytest.param("older_cluster", id="oldest", marks=marks),
        ]
        metafunc.parametrize("cluster", clusters, indirect=True, scope="session")
