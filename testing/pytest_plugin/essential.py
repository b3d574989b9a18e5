"""The files whose process tests `make test` runs besides the unit tier.

They stand for the rest in minutes, without Go, root or a cluster: each strategy trains to the
weights of one process, and a job that a command starts is killed and resumes.
"""

FILES = (
    "tests/client/backends/local/test_local_backend.py",
    "tests/docs/test_get_started.py",
    "tests/operator/engine/write/test_crash_in_memory.py",
    "tests/trainer/engines/mesh/test_equality.py",
    "tests/trainer/engines/servers/test_servers.py",
    "tests/trainer/engines/split/test_split_run.py",
    "tests/trainer/engines/strategy/test_distributed.py",
    "tests/trainer/keras_fit/test_fit_resumed.py",
    "tests/trainer/lifecycle/test_kills.py",
)
