"""Makes the test clusters available to every tier."""

import signal

import hypothesis

pytest_plugins = ["tests.cluster.fixtures"]

# A shell starts what runs in its background with SIGINT ignored, and so would we all the programs
# that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run and no limits of time, on any machine; to look for new ones, give
# `--hypothesis-profile default`.
hypothesis.settings.load_profile("ci")
