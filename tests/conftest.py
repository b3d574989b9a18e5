"""What holds for every test."""

import os
import signal
import sys

import pytest

os.environ.pop("COLUMNS", None)  # the terminal of whoever runs the tests is not theirs

pytest_plugins = [
    "testing.pytest_plugin.tiers",
    "testing.pytest_plugin.guard",
    "testing.pytest_plugin.times",
    "testing.pytest_plugin.scopes",
    "testing.pytest_plugin.heap",
    "testing.pytest_plugin.keras_defaults",
    "testing.pytest_plugin.examples",
]

FIXTURES = ("testing.cluster.cluster_fixtures", "testing.operator.fixtures", "testing.buckets")

# Keep compiled code: to compile all tests takes each worker seconds, and so does Hypothesis, which
# pytest rewrites when a plugin above imports it, after this line. Programs that a test starts still
# follow the variable PYTHONDONTWRITEBYTECODE.
sys.dont_write_bytecode = False

# A shell starts what runs in its background with SIGINT ignored, and so would we all the programs
# that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Import the fixtures where tests run, and not where they are only shared out."""
    if config.getoption("dist") == "no":
        for module in FIXTURES:
            config.pluginmanager.import_plugin(module)
