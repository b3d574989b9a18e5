"""Makes the test clusters available to every tier."""

pytest_plugins = ["tests.cluster.fixtures"]
