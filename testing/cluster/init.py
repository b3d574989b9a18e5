"""The first process inside a cluster: takes in orphans, and all the others end with it.

It is run as a file of its own, so it imports nothing of this package.
"""

import contextlib
import os
import signal

AWAITED = (signal.SIGCHLD, signal.SIGTERM)


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    while signal.sigwait(AWAITED) == signal.SIGCHLD:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    main()
