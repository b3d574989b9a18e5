"""What holds for every test."""

import os
import signal
import sys

import hypothesis
import pytest

os.environ.pop("COLUMNS", None)  # the terminal of whoever runs the tests is not theirs

pytest_plugins = [
    "testing.pytest_plugin.tiers",
    "testing.pytest_plugin.guard",
    "testing.pytest_plugin.times",
    "testing.pytest_plugin.order",
    "testing.pytest_plugin.heap",
]

FIXTURES = ("testing.cluster.fixtures", "testing.operator.fixtures", "testing.buckets")

# To compile all tests anew takes seconds of each worker; what a test starts keeps the variable
# PYTHONDONTWRITEBYTECODE that says otherwise.
sys.dont_write_bytecode = False

# A shell starts what runs in its background with SIGINT ignored, and so would we all the programs
# that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same few examples in every run and no limits of time, on any machine. The long tier looks for
# many new ones with the profile `random`. A test that says how many it takes costs more for each.
CI = hypothesis.settings(hypothesis.settings.get_profile("ci"), max_examples=40)
hypothesis.settings.register_profile("ci", CI)
hypothesis.settings.load_profile("ci")
hypothesis.settings.register_profile(
    "random", CI, derandomize=False, database=None, max_examples=1000
)


def pytest_configure(config: pytest.Config) -> None:
    """Import the fixtures where tests run, and not where they are only shared out."""
    if config.getoption("dist") == "no":
        for module in FIXTURES:
            config.pluginmanager.import_plugin(module)
