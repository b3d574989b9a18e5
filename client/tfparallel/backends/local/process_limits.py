"""Explains the end of a process by limits of this shell that are too low for TensorFlow.

A process that exceeds such a limit aborts in native code, and its last lines do not name the limit.
"""

import resource

ADDRESS_SPACE = 8 * 2**30
"""Bytes of address space that are enough for a process, although most of them are no memory.

With 2.9 GiB on 2 cores, TensorFlow cannot start its threads.
"""
THREADS = 128
"""Number of open files that is enough for a process with TensorFlow and gRPC."""

_UNEXPLAINED = frozenset({70, 134, 139})
"""Exit codes of programs that cannot say which limit they exceeded."""


def describe(code: int, replicas: int) -> str:
    """Say which limit may have ended a process with an exit code; empty: none."""
    if code not in _UNEXPLAINED:
        return ""
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    threads, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if space != resource.RLIM_INFINITY and space < ADDRESS_SPACE:
        return (
            f"ulimit -v gives each process {space / 2**30:.1f} GiB of addresses, and TensorFlow"
            f" may need {ADDRESS_SPACE / 2**30:.0f}. Run `ulimit -v unlimited` first"
        )
    needed = THREADS * replicas
    if threads != resource.RLIM_INFINITY and threads < needed:
        return (
            f"ulimit -u gives you {threads} processes and threads, and {replicas} replicas may"
            f" need {needed}. Raise it, or run fewer replicas"
        )
    return ""
