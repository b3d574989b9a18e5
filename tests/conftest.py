"""Makes the test clusters available to every tier."""

import signal

pytest_plugins = ["tests.cluster.fixtures"]

# A shell starts what runs in its background with SIGINT ignored, and so would we all the programs
# that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
