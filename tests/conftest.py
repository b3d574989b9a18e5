"""What holds for every test."""

import signal

import hypothesis

pytest_plugins = [
    "testing.cluster.fixtures",
    "testing.pytest_plugin.tiers",
    "testing.pytest_plugin.guard",
    "testing.pytest_plugin.times",
    "testing.pytest_plugin.order",
]

# A shell starts what runs in its background with SIGINT ignored, and so would we all the programs
# that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run and no limits of time, on any machine. The long tier looks for new
# ones with the profile `random`.
hypothesis.settings.load_profile("ci")
hypothesis.settings.register_profile(
    "random", hypothesis.settings.get_profile("ci"), derandomize=False, database=None
)
